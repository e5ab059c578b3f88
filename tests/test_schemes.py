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


# The rows of the schemes with a window, for one worker (staleness 0) on full batches, written
# from their formulas. `g` is the gradient at flat parameters; each returns w~ after N updates.


def agn(g, w, steps, window, eta):
    for _ in range(steps):
        local, total = w.copy(), 0
        for _ in range(window):
            step = g(local)
            local, total = local - eta * step, total + step
        w = w - eta * total / window
    return w


def downpour_easy(g, w, steps, window, eta):
    accumulator = np.full_like(w, 0.1)
    for _ in range(steps):
        local, total = w.copy(), 0
        for _ in range(window):
            step = g(local)
            local, total = local - eta * step, total + step
        accumulator = accumulator + total**2
        w = w - eta * total / np.sqrt(accumulator)
    return w


def downpour(g, w, steps, window, eta):
    accumulator, own = np.full_like(w, 0.1), np.full_like(w, 0.1)
    for _ in range(steps):
        local, total = w.copy(), 0
        for _ in range(window):
            step = g(local)
            own = own + step**2
            local, total = local - eta * step / np.sqrt(own), total + step
        accumulator = accumulator + total**2
        w = w - eta * total / np.sqrt(accumulator)
    return w


def dynamic_sgd(g, w, steps, window, eta):
    for _ in range(steps):  # alone, s = 0: w~ becomes what the local steps reached
        for _ in range(window):
            w = w - eta * g(w)
    return w


def elastic(g, center, steps, window, eta, alpha=0.9, delta=0.0):
    """Algorithms 1 and 2 of arXiv 1412.6651 by worker steps t = 0, 1, 2, ..."""
    w, v, exchanges, t = center.copy(), np.zeros_like(center), 0, 0
    while True:
        x = w
        if t % window == 0:
            e = alpha * (x - center)
            w, center = w - e, center + e
            exchanges += 1
            if exchanges == steps:
                return center
        v = delta * v - eta * g(x + delta * v)
        w = w + v
        t += 1


def aeamsgd(g, center, steps, window, eta):
    return elastic(g, center, steps, window, eta, delta=0.9)


WINDOW_SCHEMES = {
    "AGN": agn,
    "DOWNPOUR-Easy": downpour_easy,
    "DOWNPOUR": downpour,
    "Dynamic-SGD": dynamic_sgd,
    "AEASGD": elastic,
    "AEAMSGD": aeamsgd,
}


@pytest.mark.parametrize("window", [1, 5])
@pytest.mark.parametrize("example", WINDOW_SCHEMES)
def test_window_schemes_are_their_formulas(run, example, window):
    steps, eta = 20, 0.3
    flags = ["--workers", 1, "--model", "linear", "--batch_size", 0, "--steps", steps]
    finished = run(example, *flags, "--learning_rate", eta, "--window", window)
    x, labels = digits()

    def g(flat):
        grad_w, grad_b = softmax_gradient(flat[:640].reshape(64, 10), flat[640:], x, labels)
        return np.concatenate([grad_w.ravel(), grad_b])

    expected = WINDOW_SCHEMES[example](g, np.zeros(650), steps, window, eta)
    measured = np.concatenate([array.ravel() for array in finished.parameters])
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(measured, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    assert finished.summary["global_step"] == steps
    assert finished.summary["examples"] == steps * window * len(labels)
