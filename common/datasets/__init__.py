"""The data sets: one module per kind of source, imported on first use."""

import math

from common import fail
from common.datasets.known import KNOWN, Description, is_text


def reader(data: str):
    """The module that reads `--data`: its `load(flags, part)` returns x and labels."""
    # Late: they import NumPy, a tenth of a second, and the launcher starts its tasks first.
    from common.datasets import cifar10, digits, mnist, mnist1d, npz, synthetic, text

    known = {"digits": digits, "mnist": mnist, "fashion_mnist": mnist, "cifar10": cifar10,
             "mnist1d": mnist1d, "synthetic": synthetic}  # fmt: skip
    return text if is_text(data) else known.get(data, npz)


def is_known(flags) -> bool:
    """Whether this package reads `--data`: a known name, an .npz or a .txt, not the example's own
    file."""
    return flags.data in KNOWN or flags.data.endswith(".npz") or is_text(flags.data)


def describe(flags) -> Description:
    """The shape, classes and size of `--data`; those of a file come from the file."""
    return KNOWN[flags.data] if flags.data in KNOWN else reader(flags.data).describe(flags)


def shard(flags, worker: int, workers: int) -> int:
    """How many examples a worker's shard of `--data` holds; 0 if only the example knows."""
    size = describe(flags).size if is_known(flags) else 0
    return size if size and only_shard(flags) else len(range(worker, size, workers))


def only_shard(flags) -> tuple[int, int] | None:
    """(k, n) if the file `--data` holds only the shard of worker k of n."""
    return reader(flags.data).shard(flags.data) if flags.data.endswith(".npz") else None


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
