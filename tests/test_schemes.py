"""Common properties and special cases of schemes: real runs against each other and NumPy.

`test_replay.py` compares every example with its formula. All runs here use full batches and
`linear`, so nothing is random.
"""

import json

import formulas
import numpy as np
import pytest
from conftest import ROOT
from formulas import digits, gradient
from machine import seconds

from common import flags
from common.told.example import example_of

ANOTHER = pytest.mark.slow("another run of a scheme")


def loss_at(flat, x, labels):
    scores = x @ flat[:640].reshape(64, 10) + flat[640:]
    highest = scores.max(axis=1, keepdims=True)
    logs = scores - highest - np.log(np.exp(scores - highest).sum(axis=1, keepdims=True))
    return -logs[np.arange(len(labels)), labels].mean()


def flat(finished) -> np.ndarray:
    return np.concatenate([array.ravel() for array in finished.parameters])


@pytest.fixture
def trained(run):
    """A complete run on full batches with `linear`."""

    def _trained(example, *flags, steps=20, eta=0.3):
        fixed = ["--model", "linear", "--batch_size", 0]
        return run(example, *flags, *fixed, "--steps", steps, "--learning_rate", eta)

    return _trained


def assert_close(measured, expected, tolerance=1e-4):
    assert np.abs(expected).max() > 0.1  # it has learnt, so the comparison means something
    np.testing.assert_allclose(
        measured, expected, rtol=tolerance, atol=tolerance * np.abs(expected).max()
    )


def test_one_worker_is_gradient_descent(trained):
    """In one process, or as the only thread of HogWild: the same except for the order of
    floating-point additions. test_replay.py shows it for a worker of Distributed-Setup."""
    steps, eta = 50, 0.5
    g, w = gradient(), np.zeros(650)
    for _ in range(steps):
        w = w - eta * g(w)
    ways = [("Non-Distributed-Setup", "--workers", 1), ("HogWild", "--threads", 1)]
    alone, *others = [trained(*way, steps=steps, eta=eta) for way in ways]
    assert_close(flat(alone), w, 1e-5)
    for finished in others:
        assert_close(flat(finished), w, 1e-5)
        assert_close(flat(finished), flat(alone), 1e-6)
    for finished in (alone, *others):
        assert finished.summary["examples"] == steps * 1437


def test_an_update_with_backups_is_the_mean_of_its_gradients(trained):
    """Each gradient in an update has the weight 1 / (n - b). Late gradients are dropped, most of
    them from the late worker, and both kinds are counted."""
    late = ("--delay", f"2:{seconds(0.02)}")
    finished = trained("Synchronous-SGD", "--workers", 3, "--backup_workers", 1, *late, steps=100)
    lines = (finished.results / "updates.jsonl").read_text().splitlines()
    made = [json.loads(line) for line in lines]
    assert [update["global_step"] for update in made] == list(range(1, 101))
    w, took = np.zeros(650), [update["workers"] for update in made]
    assert all(len(set(workers)) == len(workers) == 2 for workers in took)
    for workers in took:
        w = w - 0.3 / 2 * sum(gradient(k, 3)(w) for k in workers)
    assert_close(flat(finished), w)
    tasks = [task for task in finished.summary["tasks"] if task["job"] == "worker"]
    pushed = [len(finished.events(k)) for k in range(3)]
    for k, task in enumerate(tasks):
        assert task["contributed"] == sum(k in workers for workers in took)
        assert task["contributed"] + task["dropped"] == pushed[k]
    shares = [task["dropped"] / n for task, n in zip(tasks, pushed)]
    assert shares[2] > max(shares[:2])
    assert "dropped" in finished.output


@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.parametrize("example", ["AEASGD", "AEAMSGD"])
def test_the_default_moving_rate(example, n):
    """0.9 / n, so that the center moves equally far for any number of workers."""
    defaults, _ = example_of(ROOT / example / "worker.py")
    parser = flags.parser(defaults, "")
    options = parser.parse_args(["--workers", str(n)])
    flags.complete(options, defaults)
    assert options.moving_rate == pytest.approx(0.9 / n)


def trained_in_numpy(scheme: formulas.HogWild, workers: int) -> np.ndarray:
    """The parameters after ten updates; without rounds the workers take turns, each push stale."""
    history = [np.zeros(650)]
    for number in range(10):
        if isinstance(scheme, formulas.SynchronousSGD):
            history.append(scheme.round(history[-1]))
            continue
        k, stale = number % workers, min(number, workers - 1)
        pulled = history[-1 - stale]
        push = scheme.push(k, pulled)
        history.append(scheme.update(history[-1], push, stale, pulled))
    return history[-1]


SPECIAL_CASES = [
    (formulas.AGN, formulas.HogWild, {"window": 1}),
    (formulas.DCASGD, formulas.HogWild, {"dc_lambda": 0}),
    (formulas.DCASGD, formulas.HogWild, {"workers": 1}),
    (formulas.DynamicSGD, formulas.HogWild, {"window": 1, "workers": 1}),
    (formulas.SAGN, formulas.SynchronousSGD, {"window": 1}),
    (formulas.LocalSGD, formulas.SynchronousSGD, {"window": 1}),
    (formulas.DifferentRates, formulas.SynchronousSGD, {"learning_rates": [0.2, 0.2]}),
]


@pytest.mark.parametrize("scheme, parent, case", SPECIAL_CASES)
def test_a_special_case_is_the_parent(scheme, parent, case):
    """As the notebooks say. Other values give something else."""
    usual = {"learning_rate": 0.4, "workers": 2, "window": 4, "dc_lambda": 200,
             "learning_rates": [0.3, 0.1]}  # fmt: skip
    flags = usual | case
    expected = trained_in_numpy(parent(flags, np.zeros(650)), flags["workers"])
    found = trained_in_numpy(scheme(flags, np.zeros(650)), flags["workers"])
    assert_close(found, expected, 1e-12)
    other = trained_in_numpy(scheme(usual, np.zeros(650)), usual["workers"])
    assert np.abs(other - trained_in_numpy(parent(usual, np.zeros(650)), 2)).max() > 1e-3


@ANOTHER
def test_without_moving_rate_elastic_workers_are_independent(trained):
    """w~ never moves, and each worker has the losses of SGD on its own shard."""
    finished = trained("AEASGD", "--workers", 2, "--window", 3, "--moving_rate", 0)
    assert not flat(finished).any()
    x, labels = digits()
    for k in (0, 1):
        g, w = gradient(k, 2), np.zeros(650)
        for event in finished.events(k):
            for _ in range(3):
                last, w = w, w - 0.3 * g(w)
            assert event["loss"] == pytest.approx(loss_at(last, x[k::2], labels[k::2]), rel=1e-4)
