"""The gradient with which real runs are replayed: plain NumPy, from its formula alone."""

from collections.abc import Callable

import numpy as np
from sklearn.datasets import load_digits


def digits(part: str = "train") -> tuple[np.ndarray, np.ndarray]:
    """The digits as the README documents them: shuffled with seed 0, every fifth for testing."""
    source = load_digits()
    order = np.random.default_rng(0).permutation(len(source.target))
    test = np.arange(len(order)) % 5 == 0
    chosen = order[test if part == "test" else ~test]
    return source.data[chosen] / 16, source.target[chosen]


def softmax_gradient(w, b, x, labels):
    """Gradient of the mean softmax cross-entropy of x w + b, written from its formula."""
    scores = x @ w + b
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    p[np.arange(len(labels)), labels] -= 1
    return x.T @ p / len(labels), p.mean(axis=0)


def gradient(worker: int = 0, workers: int = 1) -> Callable[[np.ndarray], np.ndarray]:
    """The gradient of `linear` at flat parameters, on worker k's shard: examples k, k + n, ..."""
    x, labels = (part[worker::workers] for part in digits())

    def g(flat):
        grad_w, grad_b = softmax_gradient(flat[:640].reshape(64, 10), flat[640:], x, labels)
        return np.concatenate([grad_w.ravel(), grad_b])

    return g


def gradients(workers: int) -> Callable[[int, np.ndarray], np.ndarray]:
    """The same for all workers, as the catalogue's schemes take it: (k, w) -> worker k's gradient
    at w."""
    each = [gradient(k, workers) for k in range(workers)]
    return lambda k, w: each[k](w)
