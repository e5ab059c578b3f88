"""scikit-learn's handwritten digits: 1,797 images of 8x8, part of the package."""

import numpy as np
from sklearn.datasets import load_digits

SEED = 0  # of the order


def load(flags, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Shuffled once, with `SEED`; of that order every fifth example is the test set.

    As published the digits come in repeating sequences, so that the shards of eight workers, every
    eighth example, would hold very different numbers of each class.
    """
    digits = load_digits()
    order = np.random.default_rng(SEED).permutation(len(digits.target))
    test = np.arange(len(order)) % 5 == 0
    chosen = order[test if part == "test" else ~test]
    return (digits.images[chosen] / 16).astype(np.float32), digits.target[chosen]
