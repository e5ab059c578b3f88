"""Where the examples come from: scikit-learn's digits, downloads, an .npz, random numbers."""

import gzip
import pickle
import tarfile
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


KNOWN = {
    "digits": Description((8, 8), 10, 1437),
    "synthetic": Description((784,), 10, 60_000),
    "mnist": Description((28, 28), 10, 60_000),
    "fashion_mnist": Description((28, 28), 10, 60_000),
    "cifar10": Description((32, 32, 3), 10, 50_000),
}


def _digits(flags, part):
    """scikit-learn's 1,797 handwritten digits, 8x8; every fifth example is the test set."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    test = np.arange(len(digits.target)) % 5 == 0
    chosen = test if part == "test" else ~test
    return (digits.images[chosen] / 16).astype(np.float32), digits.target[chosen]


def _synthetic(flags, part):
    """Ten random prototypes in the unit cube, each example halfway between its own and noise."""
    (features,), classes, size = KNOWN["synthetic"]
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


LOADERS = {"digits": _digits, "synthetic": _synthetic, "cifar10": _cifar10} | dict.fromkeys(
    ("mnist", "fashion_mnist"), _idx
)


def load_npz(flags, part):
    arrays = npz(flags.data)
    x, labels = arrays[f"x_{part}"], arrays[f"y_{part}"]
    return x.astype(np.float32), labels


def npz(path: str) -> dict[str, np.ndarray]:
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
