"""The data: a CSV file with a header line, then numbers; the last column is the class, 0, 1, ...

Every fifth line is a test example. Features are standardised with the mean and standard deviation
of the training lines.
"""

import functools

import numpy as np
import tensorflow.compat.v1 as tf

from common import data, fail


@functools.cache
def read(path: str) -> np.ndarray:
    """All lines, [lines, features + 1]. Exits with a one-line error if the file is bad."""
    try:
        rows = np.loadtxt(path, delimiter=",", comments=None, skiprows=1, ndmin=2)
    except ValueError as error:
        fail(f"--data {path}: {error}")
    classes = rows[:, -1]
    if rows.shape[1] < 2 or len(rows) < 5 or not np.isfinite(rows).all():
        fail(f"--data {path}: needs a header and at least five lines of finite numbers")
    if (classes < 0).any() or (classes % 1).any():
        fail(f"--data {path}: the last column must hold classes, 0, 1, 2, ...")
    return rows


def sizes(path: str) -> tuple[int, int]:
    """The numbers of features and classes."""
    rows = read(path)
    return rows.shape[1] - 1, int(rows[:, -1].max()) + 1


def scale(path: str) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of the training lines' features, [features] each, float32."""
    rows = read(path)
    train = rows[np.arange(len(rows)) % 5 > 0, :-1]
    deviation = train.std(axis=0)
    return train.mean(axis=0).astype("f"), np.where(deviation > 0, deviation, 1).astype("f")


def test(path: str) -> tuple[np.ndarray, np.ndarray]:
    """The test examples as arrays: x [examples, features], float32, and labels [examples]."""
    mean, deviation = scale(path)
    rows = read(path)[::5]
    return (rows[:, :-1].astype("f") - mean) / deviation, rows[:, -1].astype(np.int64)


def batches(flags, worker: int, workers: int):
    """This worker's shard of the training lines, as a `tf.data` pipeline.

    Returns:
        A function that returns the tensors of a fresh batch: x [batch, features], labels [batch].
    """
    if flags.batch_size == 0:
        fail("--batch_size 0: this example draws batches from shuffled lines; give 1 or more")
    if workers > len(read(flags.data)) * 4 // 5:
        fail(f"--workers {workers}: {flags.data} has too few lines")
    mean, deviation = scale(flags.data)

    def is_for_training(i, line):
        return i % 5 > 0

    def parse(i, line):
        *features, label = tf.io.decode_csv(line, [[0.0]] * (len(mean) + 1))
        return (tf.stack(features) - mean) / deviation, tf.cast(label, tf.int64)

    lines = tf.data.TextLineDataset(flags.data).skip(1).filter(lambda line: tf.not_equal(line, ""))
    train = lines.enumerate().filter(is_for_training)
    shard = train.shard(workers, worker).map(parse).cache()
    shuffled = shard.shuffle(10_000, seed=flags.seed + worker).repeat()
    return data.pipeline(shuffled.batch(flags.batch_size, drop_remainder=True), flags, worker)
