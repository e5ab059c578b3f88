"""The data sets: one module per kind of source, imported on first use."""

import importlib
import math
from typing import NamedTuple

from common import fail


class Description(NamedTuple):
    """What is known about a data set before reading it."""

    example: tuple[int, ...]  # the shape of one example
    classes: int
    size: int  # examples in the training set


KNOWN = {
    "digits": Description((8, 8), 10, 1437),
    "mnist": Description((28, 28), 10, 60_000),
    "fashion_mnist": Description((28, 28), 10, 60_000),
    "cifar10": Description((32, 32, 3), 10, 50_000),
    "synthetic": Description((784,), 10, 60_000),
}
DOWNLOADED = ("mnist", "fashion_mnist", "cifar10")


def reader(data: str):
    """The module that reads `--data`: its `load(flags, part)` returns x and labels."""
    name = "mnist" if data == "fashion_mnist" else data  # the same format
    return importlib.import_module(f"common.datasets.{name if data in KNOWN else 'npz'}")


def is_known(flags) -> bool:
    """Whether this package reads `--data`: a known name or an .npz, not the example's own file."""
    return flags.data in KNOWN or flags.data.endswith(".npz")


def describe(flags) -> Description:
    """The shape, classes and size of `--data`; those of an .npz come from its arrays."""
    return KNOWN[flags.data] if flags.data in KNOWN else reader(flags.data).describe(flags.data)


def shard(flags, worker: int, workers: int) -> int:
    """How many examples a worker's shard of `--data` holds; 0 if only the example knows."""
    size = describe(flags).size if is_known(flags) else 0
    return size if size and only_shard(flags) else len(range(worker, size, workers))


def only_shard(flags) -> tuple[int, int] | None:
    """(k, n) if the file `--data` holds only the shard of worker k of n."""
    return None if flags.data in KNOWN else reader(flags.data).shard(flags.data)


def check_floats(flags) -> None:
    """For a network that computes in float32: exits with a one-line error if `--data` holds whole
    numbers that float32 would change."""
    if flags.data.endswith(".npz"):
        reader(flags.data).check_floats(flags.data)


def image(example: tuple[int, ...]) -> tuple[int, int, int]:
    """Height, width and channels of an example; a flat one counts as a square image."""
    if len(example) == 3:
        return example
    if len(example) == 2:
        return (*example, 1)
    side = math.isqrt(math.prod(example))
    if side * side != math.prod(example):
        fail(f"--model cnn needs images, not examples of shape {list(example)}: use --model mlp")
    return side, side, 1
