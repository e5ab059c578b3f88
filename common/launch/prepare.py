"""Checks, before any task starts, that the data is on this machine and fits the flags."""

import importlib.util
import math

from common import datasets, fail
from common.datasets import download

# setup.sh makes a sentence of it. A PYTHON of the user's may lack them; importing them takes long.
for _package in ("numpy", "tensorflow", "matplotlib", "rich"):
    if importlib.util.find_spec(_package) is None:
        raise ModuleNotFoundError(f"no {_package}", name=_package)


def fetch(flags, say=print) -> None:
    """Downloads the data if that is needed.

    Raises:
        SystemExit: with one sentence, if that fails.
    """
    if flags.data in download.SOURCES:
        download.fetch(flags.data, flags.data_url, say)


def check(flags) -> None:
    """Checks an .npz, and the size of a shard. An example checks a file of another kind itself.

    Raises:
        SystemExit: with one sentence, if the data does not fit the flags.
    """
    if not datasets.is_known(flags):
        return
    example, _, size = datasets.describe(flags)
    if math.prod(example) == 0:
        fail(f"--data {flags.data}: an example has the shape {list(example)}")
    if flags.model == "cnn":
        datasets.image(example)
    if flags.workers > size:
        fail(f"--workers {flags.workers}: the training set has only {size} examples")
