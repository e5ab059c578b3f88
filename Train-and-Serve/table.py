"""The data: a CSV file with words, numbers and gaps, and what is learnt from its training part.

Line i of the file, without the header, is a test example if i % 10 is 0, a validation example if it
is 1, and otherwise a training example. Preprocessing is TensorFlow operations on lines or columns,
so training, evaluation and the exported model do the same. Change `WORDS`, `NUMBERS` and `TARGET`
for another table.
"""

import csv
import functools
import json
import math
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


@functools.cache
def read(path: str) -> tuple[list[str], list[str], list[dict]]:
    """The header, the lines below it, and each of these as column -> text. Exits with a one-line
    error if the file is bad."""
    text = Path(path).read_text(encoding="utf-8-sig")
    header, *lines = [line for line in text.split("\n") if line] or [""]
    names, rows = next(csv.reader([header]), []), []
    for name in [*WORDS, *NUMBERS, TARGET]:
        if name not in names:
            fail(f"--data {path}: its header has no column {name}: it is {header}")
    for i, line in enumerate(lines):
        (fields,) = csv.reader([line])
        if len(fields) != len(names):
            fail(f"--data {path}: example {i} has {len(fields)} values for {len(names)} columns")
        rows.append(row := dict(zip(names, fields)))
        for name in [*NUMBERS, TARGET]:
            if not _is_number(row[name]) and (row[name] or name == TARGET):
                fail(f'--data {path}: example {i} has "{row[name]}" as its {name}')
    if len(rows) < 10:
        fail(f"--data {path}: needs at least ten examples, has {len(rows)}")
    return names, lines, rows


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def part(path: str, which: str) -> list[int]:
    """The numbers of the examples in one of the `PARTS`."""
    return [i for i in range(len(read(path)[1])) if i % 10 in PARTS[which]]


@functools.cache
def learn(path: str) -> dict:
    """What preprocessing takes from the training part: the mean and the standard deviation of each
    column of numbers and of the target, without the gaps, and the words of each column of words."""
    rows = [read(path)[2][i] for i in part(path, "train")]
    learnt = {"columns": read(path)[0], "numbers": {}, "words": {}}
    for name in [*NUMBERS, TARGET]:
        known = np.array([float(row[name]) for row in rows if row[name]] or [0.0])
        learnt["numbers"][name] = [known.mean(), known.std() or 1.0]
    for name in WORDS:
        learnt["words"][name] = sorted({row[name] for row in rows} - {""})
    return learnt


def keep(folder: str, learnt: dict) -> None:
    """Writes what was learnt beside the checkpoints. Exits with a one-line error if those that are
    there were trained with something else."""
    file = results.create(folder, "--checkpoint_dir") / FILE
    if file.exists() and json.loads(file.read_text()) != learnt:
        fail(f"the checkpoints in {folder} were trained on other data ({FILE} there differs): use "
             "another --checkpoint_dir, or the --data of that run")  # fmt: skip
    results.write(file, lambda file: file.write(json.dumps(learnt, indent=1).encode()))


def columns_of(lines: tf.Tensor, learnt: dict) -> dict[str, tf.Tensor]:
    """Column -> [batch], from lines of the file, [batch]. A gap is NaN, or the empty word."""
    gaps = [[""] if name in learnt["words"] else [math.nan] for name in learnt["columns"]]
    used = {*learnt["words"], *learnt["numbers"]}
    gaps = [gap if name in used else [""] for name, gap in zip(learnt["columns"], gaps)]
    return dict(zip(learnt["columns"], tf.io.decode_csv(lines, gaps)))


def features(columns: dict[str, tf.Tensor], learnt: dict) -> tf.Tensor:
    """The network's input, [batch, features]: for each column of numbers, how many standard
    deviations the value is above the mean, 0 in a gap, and whether there is a gap; for each column
    of words, a one for the word, or no one: in a gap, or if the training part has no such word."""
    found = []
    for name in NUMBERS:
        mean, deviation = learnt["numbers"][name]
        gap = tf.math.is_nan(columns[name])
        value = (columns[name] - mean) / deviation
        value = tf.where(gap, tf.zeros_like(value), value)
        found.append(tf.stack([value, tf.cast(gap, "float")], axis=1))
    for name in WORDS:
        words = tf.constant(learnt["words"][name], tf.string)
        found.append(tf.cast(tf.equal(columns[name][:, None], words[None, :]), "float"))
    return tf.concat(found, axis=1)


def width(learnt: dict) -> int:
    """How many features there are."""
    return 2 * len(NUMBERS) + sum(len(learnt["words"][name]) for name in WORDS)


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
        return i % 10 > max(PARTS["validation"])

    def parse(i, lines):
        columns = columns_of(lines, learnt)
        return features(columns, learnt), columns[TARGET]

    lines = tf.data.TextLineDataset(flags.data).filter(lambda line: line != "").skip(1)
    shard = lines.enumerate().filter(is_for_training).shard(workers, worker).cache()
    shuffled = shard.shuffle(10_000, seed=flags.seed + worker).repeat()
    batched = shuffled.batch(flags.batch_size, drop_remainder=True).map(parse)
    return data.pipeline(batched, flags, worker)
