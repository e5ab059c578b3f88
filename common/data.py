"""The data: what it is, where it comes from, which part of it a worker sees."""

import gzip
import math
import pickle
import tarfile
import time
import zipfile
from typing import NamedTuple

import numpy as np

from common import download
from common.flags import fail


class Description(NamedTuple):
    """What is known of a data set before it is read."""

    example: tuple[int, ...]  # the shape of one
    classes: int
    size: int  # examples in the training set


_KNOWN = {
    "digits": Description((8, 8), 10, 1437),
    "synthetic": Description((784,), 10, 60_000),
    "mnist": Description((28, 28), 10, 60_000),
    "fashion_mnist": Description((28, 28), 10, 60_000),
    "cifar10": Description((32, 32, 3), 10, 50_000),
}


def describe(flags) -> Description:
    """Shape, classes and size of `--data`; of an .npz, from its arrays."""
    if flags.data in _KNOWN:
        return _KNOWN[flags.data]
    arrays = _npz(flags.data)
    return Description(
        arrays["x_train"].shape[1:], int(arrays["y_train"].max()) + 1, len(arrays["y_train"])
    )


def load(flags, part: str, worker: int = 0, workers: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """One worker's shard of the training set, or of the test set.

    Args:
        flags: the command line (`data`, `seed`).
        part: `train` or `test`.
        worker: whose shard: examples worker, worker + workers, worker + 2 workers, ...
        workers: how many share the set.

    Returns:
        x [examples, ...] (float32; of downloaded images the bytes, see `scaled`) and labels
        [examples], int64.
    """
    x, labels = _LOADERS.get(flags.data, _load_npz)(flags, part)
    return np.ascontiguousarray(x[worker::workers]), labels[worker::workers].astype(np.int64)


def scaled(x):
    """Floats in [0, 1] of the bytes of an image; anything else as it is (NumPy or TensorFlow)."""
    if x.dtype == np.uint8:
        return x.astype(np.float32) / 255
    return x


def image(example: tuple[int, ...]) -> tuple[int, int, int]:
    """Height, width and channels of an example; a flat one is a square picture.

    Raises:
        SystemExit: with one sentence, where it is no image.
    """
    if len(example) == 3:
        return example
    if len(example) == 2:
        return (*example, 1)
    side = math.isqrt(math.prod(example))
    if side * side != math.prod(example):
        fail(f"--model cnn needs images; an example of this data has the shape {list(example)}")
    return side, side, 1


def batches(flags, worker: int = 0, workers: int = 1):
    """This worker's shard as a `tf.data` pipeline on the current device.

    The examples rest in a local variable; the pipeline deals out their numbers, shuffled anew in
    every epoch (in order with `--batch_size 0`), and a batch is gathered by them.

    Args:
        flags: the command line (`data`, `batch_size`, `seed`, `delay`).
        worker: whose shard, of `workers`.

    Returns:
        A function without arguments that makes the tensors of a fresh batch, x [batch, ...] and
        labels [batch]; inside a loop, fresh in each iteration.
    """
    import tensorflow.compat.v1 as tf  # here, since the launcher uses this module without it

    x, labels = load(flags, "train", worker, workers)
    size = flags.batch_size or len(labels)
    # Made by a function that runs in this process: a constant would travel inside the graph.
    local = {"trainable": False, "collections": [tf.GraphKeys.LOCAL_VARIABLES]}
    all_x, all_labels = (
        tf.Variable(lambda a=a: tf.ensure_shape(tf.numpy_function(lambda: a, [], a.dtype), a.shape),
                    **local)
        for a in (x, labels)
    )  # fmt: skip
    numbers = tf.data.Dataset.range(len(labels))
    if flags.batch_size:
        numbers = numbers.shuffle(len(labels), seed=flags.seed + 1000 * worker)
    numbers = numbers.repeat().batch(size, drop_remainder=True).prefetch(8)
    iterator = tf.data.make_initializable_iterator(numbers)
    tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
    seconds = (flags.delay or {}).get(worker)

    def next_batch():
        late = [tf.numpy_function(lambda: time.sleep(seconds), [], [])] if seconds else []
        with tf.control_dependencies(late):
            chosen = iterator.get_next()
        batch = tf.gather(all_x, chosen)
        if batch.dtype == tf.uint8:
            batch = tf.cast(batch, tf.float32) / 255
        return batch, tf.gather(all_labels, chosen)

    return next_batch


def _digits(flags, part):
    """scikit-learn's 1,797 handwritten digits, 8x8; every fifth example is the test set."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    test = np.arange(len(digits.target)) % 5 == 0
    chosen = test if part == "test" else ~test
    return (digits.images[chosen] / 16).astype(np.float32), digits.target[chosen]


def _synthetic(flags, part):
    """Ten random prototypes in the unit cube, each example halfway between its own and noise."""
    (features,), classes, size = _KNOWN["synthetic"]
    prototypes = np.random.default_rng(flags.seed).random((classes, features), np.float32)
    rng = np.random.default_rng([flags.seed, part == "test"])
    labels = rng.integers(0, classes, size if part == "train" else size // 6)
    x = rng.random((len(labels), features), np.float32)
    x += prototypes[labels]
    x /= 2
    return x, labels


def _idx(flags, part):
    """MNIST's own format: big-endian sizes, then bytes."""
    folder = download.fetch(flags.data, flags.data_url)
    name = "train" if part == "train" else "t10k"
    with gzip.open(folder / f"{name}-images-idx3-ubyte.gz") as file:
        x = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 28, 28)
    with gzip.open(folder / f"{name}-labels-idx1-ubyte.gz") as file:
        return x, np.frombuffer(file.read(), np.uint8, offset=8)


def _cifar10(flags, part):
    names = [f"data_batch_{i}" for i in range(1, 6)] if part == "train" else ["test_batch"]
    xs, labels = [], []
    folder = download.fetch(flags.data, flags.data_url)
    with tarfile.open(folder / "cifar-10-python.tar.gz") as archive:
        for name in names:  # pickles, but with the publisher's checksum
            batch = pickle.load(
                archive.extractfile(f"cifar-10-batches-py/{name}"), encoding="bytes"
            )
            xs.append(batch[b"data"].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
            labels += batch[b"labels"]
    return np.concatenate(xs), np.array(labels)


_LOADERS = {"digits": _digits, "synthetic": _synthetic, "cifar10": _cifar10} | dict.fromkeys(
    ("mnist", "fashion_mnist"), _idx
)


def _load_npz(flags, part):
    arrays = _npz(flags.data)
    x, labels = arrays[f"x_{part}"], arrays[f"y_{part}"]
    return x.astype(np.float32), labels


def _npz(path: str) -> dict[str, np.ndarray]:
    """The four arrays of an .npz, checked; a fault ends the process with one sentence."""
    try:
        if not zipfile.is_zipfile(path):
            raise ValueError("numpy.savez writes one")
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except Exception as error:  # zip, pickle, header: NumPy raises many kinds
        fail(f"--data {path} is not a readable .npz file ({error})")
    missing = [n for n in ("x_train", "y_train", "x_test", "y_test") if n not in arrays]
    if missing:
        fail(f"--data {path} lacks {', '.join(missing)}: save x_train, y_train, x_test, y_test")
    for part in ("train", "test"):
        x, labels = arrays[f"x_{part}"], arrays[f"y_{part}"]
        if labels.ndim != 1 or x.ndim < 2 or len(x) != len(labels) or not len(x):
            fail(f"--data {path}: x_{part} {x.shape} and y_{part} {labels.shape} must be "
                 "[examples, ...] and [examples], as many of both, one at least")  # fmt: skip
        if not np.issubdtype(labels.dtype, np.integer) or labels.min() < 0:
            fail(f"--data {path}: y_{part} must hold classes 0, 1, 2, ... as integers")
        if x.dtype.kind not in "iuf" or not np.isfinite(x).all():
            fail(f"--data {path}: x_{part} must hold finite numbers")
    if arrays["x_train"].shape[1:] != arrays["x_test"].shape[1:]:
        fail(f"--data {path}: examples of x_train {arrays['x_train'].shape[1:]} and x_test "
             f"{arrays['x_test'].shape[1:]} differ in shape")  # fmt: skip
    if arrays["y_test"].max() > arrays["y_train"].max():
        fail(f"--data {path}: y_test holds class {arrays['y_test'].max()}, y_train ends at "
             f"{arrays['y_train'].max()}")  # fmt: skip
    return arrays


def prepare(flags, say=print) -> None:
    """Before any task starts: the data is on this machine and as it should be.

    Raises:
        SystemExit: with one sentence, where it is not.
    """
    if flags.data in download.SOURCES:
        download.fetch(flags.data, flags.data_url, say)


def check(flags) -> None:
    """The same for what NumPy must read: an .npz, and the size of a shard."""
    example, _, size = describe(flags)
    if math.prod(example) == 0:
        fail(f"--data {flags.data}: an example has the shape {list(example)}")
    if flags.model == "cnn":
        image(example)
    if flags.workers > size:
        fail(f"--workers {flags.workers}: the training set has only {size} examples to share out")
