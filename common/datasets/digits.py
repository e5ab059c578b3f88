"""scikit-learn's handwritten digits: 1,797 8x8 images that come with the package."""

import importlib.util
from pathlib import Path

import numpy as np

SEED = 0  # for the order


def load(flags, part: str) -> tuple[np.ndarray, np.ndarray]:
    """The digits, shuffled once with `SEED`; then every fifth example belongs to the test set.

    In the published order the digits come in repeating sequences: with eight workers, each taking
    every eighth example, the shards would hold very different numbers of each class.
    """
    # The file behind scikit-learn's load_digits, whose import takes longer than training.
    folder = importlib.util.find_spec("sklearn").submodule_search_locations[0]
    table = np.loadtxt(Path(folder, "datasets", "data", "digits.csv.gz"), delimiter=",")
    images, labels = table[:, :-1].reshape(-1, 8, 8), table[:, -1].astype(int)
    order = np.random.default_rng(SEED).permutation(len(labels))
    test = np.arange(len(order)) % 5 == 0
    chosen = order[test if part == "test" else ~test]
    return (images[chosen] / 16).astype(np.float32), labels[chosen]
