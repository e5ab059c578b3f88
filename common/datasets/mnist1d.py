"""MNIST-1D: signals of 40 numbers that resemble handwritten digits (Greydanus and Kobak 2020, arXiv
2011.14439). The authors' package mnist1d generates them, so nothing is downloaded.
"""

import contextlib
import importlib.metadata
import os
import random
from pathlib import Path

import numpy as np

from common import fail
from common.datasets import download
from common.datasets.known import KNOWN
from common.record import faults

TRAIN, TEST = KNOWN["mnist1d"].size, 10_000  # examples; the authors' own set has 4,000 and 1,000


def load(flags, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Signals [examples, 1, 40], float32, and labels [examples].

    All settings but the number of examples are the package's, its seed included. The first process
    generates them in some seconds, the others wait, and later runs read the file.
    """
    version = importlib.metadata.version("mnist1d")
    path = download.folder("mnist1d") / f"{version}-{TRAIN}-{TEST}.npz"
    try:
        with download.alone_in(path.parent):
            arrays = _read(path) or _generate(path)
    except OSError as error:
        fail(faults.sentence(error, path.parent) or f"cannot write {path}: {error}")
    return arrays[f"x_{part}"], arrays[f"y_{part}"]


def _read(path: Path) -> dict[str, np.ndarray] | None:
    """The arrays; None if there is no such file, or if it is damaged."""
    # Zip, header: NumPy raises many kinds of errors.
    with contextlib.suppress(Exception), np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}
    return None


def _generate(path: Path) -> dict[str, np.ndarray]:
    from mnist1d import data  # late: it imports Matplotlib and SciPy, a second

    args = data.get_dataset_args()
    args.num_samples, args.train_split = TRAIN + TEST, TRAIN / (TRAIN + TEST)
    before = random.getstate(), np.random.get_state()
    try:
        made = data.make_dataset(args)  # seeds the generators that the whole process shares
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
    arrays = {
        "x_train": made["x"][:, None].astype(np.float32), "y_train": made["y"],
        "x_test": made["x_test"][:, None].astype(np.float32), "y_test": made["y_test"],
    }  # fmt: skip
    part = path.with_name(f"{path.name}.part")
    with open(part, "wb") as file:
        np.savez(file, **arrays)
    os.replace(part, path)
    return arrays
