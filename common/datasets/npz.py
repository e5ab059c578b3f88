"""The user's own data: four arrays in a file from `numpy.savez`.

The type of the features says what they are. Bytes (uint8) are pixels: they stay bytes, and
`data.scaled` divides them by 255, as in downloaded images. Other whole numbers stay whole, as int32
or int64. Floats become float32.

The training set is shuffled once, with `SEED`, before it is split among the workers: if the file is
sorted by class, each shard still holds every class. A fifth array, `shard=[k, n]`, says that the
training set is already only the shard of worker k of n; it keeps its order. Then each machine needs
only its own worker's file.
"""

import zipfile

import numpy as np

from common import fail
from common.datasets.known import Description

SEED = 0  # for the order of the training set
WHOLE = 2**24  # float32 holds every whole number up to this one


def load(flags, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Features [examples, ...] (bytes, int32, int64 or float32) and labels [examples]."""
    arrays = read(flags.data)
    x, labels = arrays[f"x_{part}"], arrays[f"y_{part}"]
    x = x.astype(_kind(arrays), copy=False)
    if part == "train" and "shard" not in arrays:
        order = np.random.default_rng(SEED).permutation(len(labels))
        x, labels = x[order], labels[order]
    return x, labels


def _kind(arrays: dict[str, np.ndarray]) -> np.dtype:
    """The type that `load` gives the features, those of the test set too."""
    kinds = [arrays[name].dtype for name in ("x_train", "x_test")]
    if kinds[0].kind == "f":
        return np.dtype(np.float32)
    if kinds[0] == np.uint8:
        return kinds[0]
    found = np.result_type(*kinds, np.int32)
    return found if found.kind == "i" else np.dtype(np.int64)  # uint64: `read` checks its values


def check_floats(path: str) -> None:
    """Exits with a one-line error if float32 would change the features, since they are whole and
    too large."""
    arrays = read(path)
    if _kind(arrays).kind != "i":
        return
    for part in ("train", "test"):
        x = arrays[f"x_{part}"]
        for value in (int(x.min(initial=0)), int(x.max(initial=0))):
            if abs(value) > WHOLE:
                fail(f"--data {path}: x_{part} holds the whole number {value}, but this network "
                     f"computes in float32, which holds all of them only up to {WHOLE}: save "
                     "smaller ones, floats, or use a model of your own")  # fmt: skip


def describe(flags) -> Description:
    arrays = read(flags.data)
    # A shard may lack a class; the test set is the same for all workers.
    x, labels = arrays["x_train"], arrays["y_test" if "shard" in arrays else "y_train"]
    return Description(x.shape[1:], int(labels.max()) + 1, len(x))


def shard(path: str) -> tuple[int, int] | None:
    """(k, n) if the file holds only the shard of worker k of n."""
    with np.load(path, allow_pickle=False) as file:  # only this array; `read` checks it
        return tuple(map(int, file["shard"])) if "shard" in file.files else None


def check_shard(flags, shard: tuple[int, int], worker: int, workers: int) -> None:
    """Exits with a one-line error if the file is another worker's."""
    if shard != (worker, workers):
        fail(f"--data {flags.data} holds the shard of worker {shard[0]} of {shard[1]}, but this "
             f"is worker {worker} of {workers}: give each worker its own file")  # fmt: skip


def read(path: str) -> dict[str, np.ndarray]:
    """Reads and checks the arrays of an .npz; exits with a one-line error if one is bad."""
    try:
        if not zipfile.is_zipfile(path):
            raise ValueError("write one with numpy.savez")
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
            fail(f"--data {path}: x_{part} {x.shape} and y_{part} {labels.shape} must have "
                 "the shapes [n, ...] and [n], with n at least 1")  # fmt: skip
        if labels.dtype.kind not in "iu" or labels.min() < 0 or labels.max() >= 2**31:
            fail(f"--data {path}: y_{part} must hold classes 0, 1, 2, ... as integers below 2^31")
        if x.dtype.kind not in "iuf" or not np.isfinite(x).all():
            fail(f"--data {path}: x_{part} must hold finite numbers")
        large = max(-float(x.min(initial=0)), float(x.max(initial=0)))
        if x.dtype.kind == "f" and large > float(np.finfo(np.float32).max):
            fail(f"--data {path}: x_{part} must hold numbers that fit in float32, below 3.4e38")
        if x.dtype.kind == "u" and int(x.max(initial=0)) >= 2**63:
            fail(f"--data {path}: x_{part} must hold whole numbers that fit in int64, below 2^63")
    x_train, x_test = arrays["x_train"], arrays["x_test"]
    if len({(x.dtype == np.uint8, x.dtype.kind == "f") for x in (x_train, x_test)}) > 1:
        fail(f"--data {path}: x_train holds {x_train.dtype} and x_test {x_test.dtype}, but bytes, "
             "whole numbers and floats mean different things: save both as one type")  # fmt: skip
    if x_train.dtype == np.uint8 and max(x_train.max(initial=0), x_test.max(initial=0)) == 1:
        fail(f"--data {path}: x_train and x_test hold only the bytes 0 and 1, but bytes count as "
             "pixels, and are divided by 255: save them as float32")  # fmt: skip
    if x_train.shape[1:] != x_test.shape[1:]:
        fail(f"--data {path}: examples of x_train {x_train.shape[1:]} and x_test "
             f"{x_test.shape[1:]} differ in shape")  # fmt: skip
    shard = arrays.get("shard")
    if shard is not None and not (
        shard.shape == (2,) and shard.dtype.kind in "iu" and 0 <= shard[0] < shard[1]
    ):
        fail(f"--data {path}: shard must be [k, n], worker k of n, counted from 0")
    if shard is not None and arrays["y_train"].max() > arrays["y_test"].max():
        fail(f"--data {path}: y_train has class {arrays['y_train'].max()}, but y_test does not: a "
             "shard needs a test set with all classes")  # fmt: skip
    if shard is None and arrays["y_test"].max() > arrays["y_train"].max():
        fail(f"--data {path}: y_test has class {arrays['y_test'].max()}, but the highest class "
             f"in y_train is {arrays['y_train'].max()}")  # fmt: skip
    return arrays
