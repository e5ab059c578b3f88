"""Common properties and special cases of schemes: real runs against each other and NumPy.

`test_replay.py` compares every example with its formula. All runs here use full batches and
`linear`, so nothing is random.
"""

import argparse
import ast

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from conftest import ROOT
from gradients import digits, gradient
from machine import seconds
from replays import SIZE, flat, in_order, in_rounds, replayed, rounds, scheme_of
from schemes import DCASGD, SCHEMES

from common import flags
from common.told.example import example_of

ANOTHER = pytest.mark.slow("another run of a scheme")


def loss_at(flat, x, labels):
    scores = x @ flat[:640].reshape(64, 10) + flat[640:]
    highest = scores.max(axis=1, keepdims=True)
    logs = scores - highest - np.log(np.exp(scores - highest).sum(axis=1, keepdims=True))
    return -logs[np.arange(len(labels)), labels].mean()


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
    scheme = scheme_of("Non-Distributed-Setup", {"learning_rate": eta, "workers": 1})
    w = in_order(scheme, [(number, number - 1, 0) for number in range(1, steps + 1)])[-1]
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
    took = rounds(finished)
    assert len(took) == 100
    assert all(len(set(workers)) == len(workers) == 2 for workers in took)
    scheme = scheme_of("Synchronous-SGD", finished.summary["flags"])
    assert_close(flat(finished), replayed(finished, scheme))
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


@pytest.mark.parametrize("n", [2, 4])
def test_the_default_period(n):
    """One change of the momentum for a push of each worker."""
    defaults, _ = example_of(ROOT / "Async-DiLoCo" / "worker.py")
    options = flags.parser(defaults, "").parse_args(["--workers", str(n)])
    flags.complete(options, defaults)
    assert options.delay_period == n


def trained_in_numpy(example: str, flags: dict) -> np.ndarray:
    """The parameters after ten updates; without rounds the workers take turns, each push stale."""
    scheme, workers = scheme_of(example, flags), flags["workers"]
    if scheme.worker != "synchronous":
        events = [(i + 1, max(0, i + 1 - workers), i % workers) for i in range(10)]
        return in_order(scheme, events)[-1]
    return in_rounds(scheme, [list(range(workers))] * 10)[-1]


RATES = "Synchronous-SGD-different-learning-rates"
SPECIAL_CASES = [
    ("AGN", "HogWild", {"window": 1}),
    ("DC-ASGD", "HogWild", {"dc_lambda": 0}),
    ("DC-ASGD", "HogWild", {"workers": 1}),
    ("Dynamic-SGD", "HogWild", {"window": 1, "workers": 1}),
    ("AEAMSGD", "AEASGD", {"momentum": 0}),
    ("SAGN", "Synchronous-SGD", {"window": 1}),
    ("Local-SGD", "Synchronous-SGD", {"window": 1}),
    (RATES, "Synchronous-SGD", {"learning_rates": [0.2, 0.2]}),
]


@pytest.mark.parametrize("scheme, parent, case", SPECIAL_CASES)
def test_a_special_case_is_the_parent(scheme, parent, case):
    """As the notebooks say. Other values give something else."""
    usual = {"learning_rate": 0.4, "workers": 2, "window": 4, "dc_lambda": 200, "adaptive": False,
             "momentum": 0.9, "moving_rate": 0.3, "learning_rates": [0.3, 0.1]}  # fmt: skip
    expected = trained_in_numpy(parent, usual | case)
    assert_close(trained_in_numpy(scheme, usual | case), expected, 1e-12)
    other = trained_in_numpy(scheme, usual) - trained_in_numpy(parent, usual)
    assert np.abs(other).max() > 1e-3


def test_two_updates_of_adaptive_compensation():
    """Of one parameter, by hand: M = 0.2 and 0.39; the second has a stale pull."""
    flags = argparse.Namespace(learning_rate=0.5, dc_lambda=2, adaptive=True)
    scheme = DCASGD(flags, None, np.zeros(1))
    w = scheme.update(np.array([1.0]), np.array([2.0]), 0, np.array([1.0]))
    assert (w[0], scheme.M[0]) == (0, pytest.approx(0.2))
    w = scheme.update(w, np.array([2.0]), 1, np.array([1.0]))
    assert scheme.state()["mean_square"][0] == pytest.approx(0.39)
    assert w[0] == pytest.approx(-0.5 * (2 + 2 / (0.39 + 1e-7) ** 0.5 * 4 * -1))


def test_the_epsilon_of_adaptive_compensation_is_under_the_root():
    """M = 0.05 * 1e-6: as small as the epsilon, 1e-7. In NumPy, and in worker.py's `strength`."""
    flags = argparse.Namespace(learning_rate=0.5, dc_lambda=2, adaptive=True)
    scheme = DCASGD(flags, None, np.zeros(1))
    w = scheme.update(np.array([1.0]), np.array([1e-3]), 1, np.array([-1e6]))
    strength = 2 / 1.5e-7**0.5
    assert w[0] == pytest.approx(1 - 0.5 * (1e-3 + strength * 1e-6 * (1 + 1e6)), rel=1e-9)
    text = (ROOT / "DC-ASGD" / "worker.py").read_text()
    (source,) = (
        ast.get_source_segment(text, node)
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef) and node.name == "strength"
    )
    with tf.Graph().as_default(), tf.Session() as session:
        exec(source, own := {"tf": tf, "flags": flags})
        M = tf.Variable(0.0)
        session.run(M.initializer)
        assert session.run(own["strength"](M, tf.constant(1e-3))) == pytest.approx(strength, 1e-5)


def by_hand(scheme: str, grads: tuple = (), **told):
    """A scheme of one worker and one parameter, w = 1, whose gradients are these."""
    left = iter(grads)
    usual = {"workers": 1, "window": len(grads), "learning_rate": 0.1, "inner": "adamw",
             "inner_beta1": 0.9, "inner_beta2": 0.99, "inner_epsilon": 0, "weight_decay": 0.1,
             "outer": "nesterov", "outer_rate": 0.7, "outer_momentum": 0.9}  # fmt: skip
    own = argparse.Namespace(**usual | told)
    return SCHEMES[scheme](own, lambda _, w: np.array([next(left)]), np.ones(1))


def test_two_steps_of_adamw():
    """m = 0.2, v = 0.04, unbiased 2 and 4: the direction is 1, and 0.1 for the decay. Then
    m = 0.08, v = 0.0496, unbiased 0.08 / 0.19 and 0.0496 / 0.0199."""
    for grads, end in (((2.0,), 0.89), ((2.0, -1.0), 0.854430)):
        d = by_hand("DiLoCo", grads).contribution(0, np.ones(1))
        assert 1 - d[0] == pytest.approx(end, abs=1e-6)


@pytest.mark.parametrize(
    ("scheme", "told", "ends"),
    [
        ("DiLoCo", {}, (-1.33, -5.887)),  # u = 1, 3.9
        ("DiLoCo", {"outer": "momentum", "outer_rate": 0.5}, (-0.5, -2.45)),  # u = 10, 39
        ("Async-DiLoCo", {"delay_period": 2}, (-0.35, -2.66)),  # B = 1; then u = 2
    ],
)
def test_two_outer_steps(scheme, told, ends):
    """From w~ = 0, of the moves 1 and 3."""
    scheme, w = by_hand(scheme, **told), np.zeros(1)
    for move, end in zip((np.ones(1), 3 * np.ones(1)), ends):
        if scheme.worker == "synchronous":
            w = scheme.update_round(w, {0: move})
        else:
            w = scheme.update(w, move, 0, w)
        assert w[0] == pytest.approx(end)
    if "delay_period" in told:
        assert (scheme.B[0], scheme.u[0]) == (0, 2)


@pytest.mark.parametrize(("second", "sign"), [(-0.5, 1), (-2.0, -1)])
def test_a_sign_is_that_of_the_momentum(second, sign):
    """m = 0.1; then 0.09 - 0.05, or 0.09 - 0.2."""
    scheme = by_hand("Sign-SGD", (1.0, second), sign_momentum=0.9, window=1)
    assert [scheme.contribution(0, np.ones(1))[0] > 0 for _ in "12"] == [True, sign > 0]


def test_full_batches_on_equal_shards_are_one_process():
    """The mean of the shards' gradients is the gradient of all 1,437 examples."""
    flags = {"learning_rate": 0.4, "workers": 3}
    expected = trained_in_numpy("Non-Distributed-Setup", flags | {"workers": 1})
    assert_close(trained_in_numpy("Synchronous-SGD", flags), expected, 1e-12)


def test_an_elastic_exchange_conserves_the_sum():
    """Of the worker's w and w~, if no gradient moves w."""
    flags = {"learning_rate": 0.0, "workers": 1, "window": 1, "moving_rate": 0.3}
    scheme = scheme_of("AEASGD", flags)
    own, center = np.random.default_rng(0).normal(size=(2, SIZE))
    scheme.w[0] = own
    moved = scheme.update(center, scheme.contribution(0, center), 0, center)
    assert np.abs(moved - center).max() > 0.1
    np.testing.assert_allclose(scheme.w[0] + moved, own + center, atol=1e-12)


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
