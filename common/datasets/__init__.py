"""The data sets: a module for each kind of source, imported when it is asked for."""

import importlib
from typing import NamedTuple


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


def reader(data: str):
    """The module that reads `--data`: its `load(flags, part)` returns x and labels."""
    name = "mnist" if data == "fashion_mnist" else data  # the same format
    return importlib.import_module(f"common.datasets.{name if data in KNOWN else 'npz'}")
