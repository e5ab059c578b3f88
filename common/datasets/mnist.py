"""MNIST, and Fashion-MNIST, which has the same format."""

import gzip
from pathlib import Path

import numpy as np

from common.datasets import download


def fetch(flags, say=print) -> Path:
    """Downloads the files if they are missing; returns their folder."""
    return download.fetch(flags.data, flags.data_url, say)


def load(flags, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Reads MNIST's own format: big-endian sizes, then bytes."""
    folder = fetch(flags)
    name = "train" if part == "train" else "t10k"
    with gzip.open(folder / f"{name}-images-idx3-ubyte.gz") as file:
        x = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 28, 28)
    with gzip.open(folder / f"{name}-labels-idx1-ubyte.gz") as file:
        return x, np.frombuffer(file.read(), np.uint8, offset=8)
