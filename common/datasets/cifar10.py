"""CIFAR-10, in its publisher's format for Python."""

import pickle
import tarfile

import numpy as np

from common.datasets import download


def load(flags, part: str) -> tuple[np.ndarray, np.ndarray]:
    names = [f"data_batch_{i}" for i in range(1, 6)] if part == "train" else ["test_batch"]
    xs, labels = [], []
    folder = download.fetch(flags.data, flags.data_url)
    with tarfile.open(folder / "cifar-10-python.tar.gz") as archive:
        for name in names:  # pickles, but with the publisher's checksum
            batch = pickle.load(
                archive.extractfile(f"cifar-10-batches-py/{name}"), encoding="bytes"
            )
            xs.append(batch[b"data"].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
            labels += batch[b"labels"]
    return np.concatenate(xs), np.array(labels)
