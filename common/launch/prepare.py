"""Before any task starts: is the data on this machine, and as it should be?"""

import math

from common import datasets, fail
from common.datasets import download


def fetch(flags, say=print) -> None:
    """Downloads the data where that is needed.

    Raises:
        SystemExit: with one sentence, where it cannot be had.
    """
    if flags.data in download.SOURCES:
        download.fetch(flags.data, flags.data_url, say)


def check(flags) -> None:
    """What NumPy must read: an .npz, and the size of a shard. A file of another kind is read by the
    example itself.

    Raises:
        SystemExit: with one sentence, where the data does not fit the flags.
    """
    if not datasets.is_known(flags):
        return
    example, _, size = datasets.describe(flags)
    if math.prod(example) == 0:
        fail(f"--data {flags.data}: an example has the shape {list(example)}")
    if flags.model == "cnn":
        datasets.image(example)
    if flags.workers > size:
        fail(f"--workers {flags.workers}: the training set has only {size} examples to share out")
