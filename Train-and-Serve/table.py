"""The data: a CSV file with words, numbers and gaps, and what is learnt from its training part.

Line i of the file, without the header, is a test example if i % 10 is 0, a validation example if it
is 1, and otherwise a training example. Preprocessing is TensorFlow operations on lines or columns,
so training, evaluation and the exported model do the same. Change `WORDS`, `NUMBERS` and `TARGET`
for another table.
"""

import csv
import functools
import json
import keyword
import math
import re
from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf

from common import data, fail
from common.record import results

WORDS = ["district", "heating", "balcony"]
NUMBERS = ["area", "rooms", "year", "distance"]
TARGET = "rent"
PARTS = {"test": [0], "validation": [1], "train": [2, 3, 4, 5, 6, 7, 8, 9]}
FILE = "learnt.json"


# A line of CSV: values separated by commas; quotation marks only around a whole value.
LINE = re.compile(r'([^",]*|"([^"]|"")*")(,([^",]*|"([^"]|"")*"))*')


@functools.cache
def read(path: str) -> tuple[list[str], list[str], list[dict]]:
    """The header, the lines below it, and each of these as column -> text; empty lines do not
    count. Exits with a one-line error if the file is bad."""
    try:
        text = Path(path).read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        fail(f"--data {path} is not UTF-8 ({error.reason} at byte {error.start}): save it as that")
    header, *lines = [line for line in text.split("\n") if line] or [""]
    names, rows = _values(path, "its header", header), []
    for name in [*WORDS, *NUMBERS, TARGET]:
        if name not in names:
            fail(f"--data {path}: its header has no column {name!r}: it has {names}")
        usable = name.isidentifier() and name.isascii() and name != "self"
        if not usable or keyword.iskeyword(name):
            fail(f"--data {path}: rename the column {name!r}: a client of the model gives it as "
                 "an argument, so it must be a name such as living_area")  # fmt: skip
    for i, line in enumerate(lines):
        values = _values(path, f"example {i}", line)
        if len(values) != len(names):
            fail(f"--data {path}: example {i} has {len(values)} values for {len(names)} columns")
        rows.append(row := dict(zip(names, values)))
        for name in [*NUMBERS, TARGET]:
            if not _is_number(row[name]) and (row[name] or name == TARGET):
                fail(f'--data {path}: example {i} has "{row[name]}" as its {name}')
    if len(rows) < 10:
        fail(f"--data {path}: needs at least ten examples, has {len(rows)}")
    return names, lines, rows


def _values(path: str, what: str, line: str) -> list[str]:
    """The values of a line, if TensorFlow reads the same ones."""
    if not LINE.fullmatch(line) or "\r" in line:
        fail(f"--data {path}: {what} is no line of CSV, {line!r}: quotation marks go around a "
             "whole value, and are doubled inside it")  # fmt: skip
    (values,) = csv.reader([line])
    for value in values:
        if value != value.strip():
            fail(f"--data {path}: {what} has a space before or after {value.strip()!r}: remove it")
    return values


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text)) and "_" not in text
    except ValueError:
        return False


def part(path: str, which: str) -> list[int]:
    """The numbers of the examples in one of the `PARTS`."""
    return [i for i in range(len(read(path)[1])) if i % 10 in PARTS[which]]


@functools.cache
def learn(path: str) -> dict:
    """What preprocessing takes from the training part. `numbers`: of each column of numbers, the
    mean and the standard deviation, without the gaps. `target`: the same of the target. `words`: of
    each column of words, its words. `columns`: the header."""
    rows = [read(path)[2][i] for i in part(path, "train")]

    def scale(name: str) -> list[float]:
        known = np.array([float(row[name]) for row in rows if row[name]] or [0.0])
        return [known.mean(), known.std() or 1.0]

    return {
        "columns": read(path)[0],
        "target": {TARGET: scale(TARGET)},
        "numbers": {name: scale(name) for name in NUMBERS},
        "words": {name: sorted({row[name] for row in rows} - {""}) for name in WORDS},
    }


def keep(folder: str, learnt: dict) -> None:
    """Writes what was learnt beside the checkpoints, and beside the best one. Exits with a one-line
    error if those that are there were trained with something else."""
    text = json.dumps(learnt, indent=1)  # the order counts, too: it is that of the inputs
    file = results.create(folder, "--checkpoint_dir") / FILE
    known = file.read_text() if file.exists() else ""
    if known != text and (known or list(file.parent.glob("model.ckpt-*"))):
        fail(f"the checkpoints in {folder} were trained on other data, or on other columns (see "
             f"{FILE} there): use another --checkpoint_dir, or the --data of that run")  # fmt: skip
    for place in (file, results.create(file.parent / "best") / FILE):
        results.write(place, lambda file: file.write(text.encode()))


def columns_of(lines: tf.Tensor, learnt: dict) -> dict[str, tf.Tensor]:
    """Column -> [batch], from lines of the file, [batch]. A gap is NaN, or the empty word."""
    numbers = learnt["numbers"].keys() | learnt["target"].keys()
    gaps = [[math.nan] if name in numbers else [""] for name in learnt["columns"]]
    return dict(zip(learnt["columns"], tf.io.decode_csv(lines, gaps)))


def features(columns: dict[str, tf.Tensor], learnt: dict) -> tf.Tensor:
    """The network's input, [batch, features]: for each column of numbers, how many standard
    deviations the value is above the mean, 0 in a gap, and whether there is a gap; each column of
    words one-hot, all zeros in a gap, or if the training part has no such word."""
    found = []
    for name, (mean, deviation) in learnt["numbers"].items():
        gap = tf.math.is_nan(columns[name])
        value = (columns[name] - mean) / deviation
        value = tf.where(gap, tf.zeros_like(value), value)
        found.append(tf.stack([value, tf.cast(gap, "float")], axis=1))
    for name, words in learnt["words"].items():
        words = tf.constant(words, tf.string)
        found.append(tf.cast(tf.equal(columns[name][:, None], words[None, :]), "float"))
    return tf.concat(found, axis=1)


def width(learnt: dict) -> int:
    """How many features there are."""
    return 2 * len(learnt["numbers"]) + sum(map(len, learnt["words"].values()))


def arrays(path: str, which: str) -> tuple[np.ndarray, np.ndarray]:
    """A part as arrays: its lines [examples], and its targets [examples], float32."""
    _, lines, rows = read(path)
    chosen = part(path, which)
    targets = np.array([float(rows[i][TARGET]) for i in chosen], np.float32)
    return np.array([lines[i] for i in chosen], object), targets


def batches(flags, worker: int, workers: int, learnt: dict):
    """This worker's shard of the training part, as a `tf.data` pipeline: it reads the file, and
    leaves nothing to Python.

    Returns:
        A function that returns the tensors of a fresh batch: x [batch, features], targets [batch].
    """
    if flags.batch_size == 0:
        fail("--batch_size 0: this example draws batches from shuffled lines; give 1 or more")
    if workers > len(part(flags.data, "train")):
        fail(f"--workers {workers}: {flags.data} has too few lines")

    def is_for_training(i, line):
        return tf.reduce_any(tf.equal(i % 10, PARTS["train"]))

    def parse(i, lines):
        columns = columns_of(lines, learnt)
        return features(columns, learnt), columns[TARGET]

    lines = tf.data.TextLineDataset(flags.data).filter(lambda line: tf.not_equal(line, "")).skip(1)
    shard = lines.enumerate().filter(is_for_training).shard(workers, worker).cache()
    shuffled = shard.shuffle(len(read(flags.data)[1]), seed=flags.seed + worker).repeat()
    batched = shuffled.batch(flags.batch_size, drop_remainder=True).map(parse)
    return data.pipeline(batched, flags, worker)
