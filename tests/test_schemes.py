"""The schemes compute what their formulas say: the real run.sh against plain NumPy."""

import numpy as np
import pytest
from sklearn.datasets import load_digits


def digits() -> tuple[np.ndarray, np.ndarray]:
    """The training set as the examples document it: every fifth example is for testing."""
    source = load_digits()
    train = np.arange(len(source.target)) % 5 != 0
    return source.data[train] / 16, source.target[train]


def softmax_gradient(w, b, x, labels):
    """Gradient of the mean softmax cross-entropy of x w + b, written from its formula."""
    scores = x @ w + b
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    p[np.arange(len(labels)), labels] -= 1
    return x.T @ p / len(labels), p.mean(axis=0)


@pytest.mark.parametrize("example", ["Non-Distributed-Setup", "Distributed-Setup", "HogWild"])
def test_one_worker_is_gradient_descent(run, example):
    steps, eta = 50, 0.5
    flags = ["--workers", 1, "--model", "linear", "--batch_size", 0, "--steps", steps]
    finished = run(example, *flags, "--learning_rate", eta)

    x, labels = digits()
    w, b = np.zeros((64, 10)), np.zeros(10)
    for _ in range(steps):
        grad_w, grad_b = softmax_gradient(w, b, x, labels)
        w, b = w - eta * grad_w, b - eta * grad_b

    measured_w, measured_b = finished.parameters
    assert np.abs(w).max() > 0.1  # something was learnt, so the comparison says something
    np.testing.assert_allclose(measured_w, w, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(measured_b, b, rtol=1e-5, atol=1e-5)
    assert finished.summary["examples"] == steps * len(labels)
