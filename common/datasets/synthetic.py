"""Generated images of MNIST's size."""

import numpy as np

from common.datasets.known import KNOWN


def load(flags, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Ten random points in the unit cube; each example is halfway between one of them and noise."""
    (features,), classes, size = KNOWN["synthetic"]
    prototypes = np.random.default_rng(flags.seed).random((classes, features), np.float32)
    rng = np.random.default_rng([flags.seed, part == "test"])
    labels = rng.integers(0, classes, size if part == "train" else size // 6)
    x = rng.random((len(labels), features), np.float32)
    x += prototypes[labels]
    x /= 2
    return x, labels
