"""The schemes compute what their formulas say: the real run.sh against plain NumPy.

All on full batches with `linear`, where nothing is left to chance. Runs are made once and shared.
"""

import json

import numpy as np
import pytest
from conftest import ROOT, copy_example
from sklearn.datasets import load_digits

from common import flags
from common.launch.example import example_of

ANOTHER = pytest.mark.slow("another run of a scheme")


def digits() -> tuple[np.ndarray, np.ndarray]:
    """The training set as the examples document it: shuffled once with seed 0, and of that order
    every fifth example is for testing."""
    source = load_digits()
    order = np.random.default_rng(0).permutation(1797)
    train = order[np.arange(1797) % 5 != 0]
    return source.data[train] / 16, source.target[train]


def softmax_gradient(w, b, x, labels):
    """Gradient of the mean softmax cross-entropy of x w + b, written from its formula."""
    scores = x @ w + b
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    p[np.arange(len(labels)), labels] -= 1
    return x.T @ p / len(labels), p.mean(axis=0)


def loss_at(flat, x, labels):
    scores = x @ flat[:640].reshape(64, 10) + flat[640:]
    highest = scores.max(axis=1, keepdims=True)
    logs = scores - highest - np.log(np.exp(scores - highest).sum(axis=1, keepdims=True))
    return -logs[np.arange(len(labels)), labels].mean()


def gradient(worker: int = 0, workers: int = 1):
    """The gradient at flat parameters, on worker k's shard: examples k, k + n, k + 2n, ..."""
    x, labels = (part[worker::workers] for part in digits())

    def g(flat):
        grad_w, grad_b = softmax_gradient(flat[:640].reshape(64, 10), flat[640:], x, labels)
        return np.concatenate([grad_w.ravel(), grad_b])

    return g


def flat(finished) -> np.ndarray:
    return np.concatenate([array.ravel() for array in finished.parameters])


_RUNS: dict = {}


@pytest.fixture
def trained(run, tmp_path_factory):
    """A run with full batches on `linear` to its end; the same flags are run only once."""

    def _trained(example, *flags, steps=20, eta=0.3):
        flags = [example, *map(str, flags), "--steps", str(steps), "--learning_rate", str(eta)]
        if tuple(flags) not in _RUNS:
            where = tmp_path_factory.mktemp("run")
            fixed = ["--model", "linear", "--batch_size", 0, "--results", where]
            _RUNS[tuple(flags)] = run(*flags, *fixed)
        return _RUNS[tuple(flags)]

    return _trained


def assert_close(measured, expected, tolerance=1e-4):
    assert np.abs(expected).max() > 0.1  # something was learnt, so the comparison says something
    np.testing.assert_allclose(
        measured, expected, rtol=tolerance, atol=tolerance * np.abs(expected).max()
    )


@pytest.mark.parametrize("example", ["Non-Distributed-Setup", "Distributed-Setup", "HogWild"])
def test_one_worker_is_gradient_descent(trained, example):
    steps, eta = 50, 0.5
    finished = trained(example, "--workers", 1, steps=steps, eta=eta)
    g, w = gradient(), np.zeros(650)
    for _ in range(steps):
        w = w - eta * g(w)
    assert_close(flat(finished), w, 1e-5)
    assert finished.summary["examples"] == steps * 1437


def test_one_worker_of_hogwild_is_one_process(trained):
    """Up to the order in which floats are added."""
    alone = flat(trained("Non-Distributed-Setup", "--workers", 1, steps=50, eta=0.5))
    assert_close(flat(trained("HogWild", "--workers", 1, steps=50, eta=0.5)), alone, 1e-6)
    thread = trained("HogWild", "--threads", 1, steps=50, eta=0.5)
    assert_close(flat(thread), alone, 1e-6)


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


@pytest.mark.parametrize("window", [pytest.param(1, marks=ANOTHER), 5])
@pytest.mark.parametrize("example", WINDOW_SCHEMES)
def test_window_schemes_are_their_formulas(trained, example, window):
    steps, eta = 20, 0.3
    finished = trained(example, "--workers", 1, "--window", window, steps=steps, eta=eta)
    assert_close(
        flat(finished), WINDOW_SCHEMES[example](gradient(), np.zeros(650), steps, window, eta)
    )
    assert finished.summary["global_step"] == steps
    assert finished.summary["examples"] == steps * window * 1437


# The synchronous rows, for n workers. `rates`: one for each worker.


def synchronous(n, steps, rates, window=1, local_rate=0.0):
    w = np.zeros(650)
    for _ in range(steps):
        update = 0
        for k in range(n):
            g, local, total = gradient(k, n), w.copy(), 0
            for _ in range(window):
                step = g(local)
                local, total = local - local_rate * step, total + step
            update = update + rates[k] * total / window
        w = w - update
    return w


@pytest.mark.parametrize("n", [2, pytest.param(3, marks=ANOTHER)])
def test_synchronous_sgd_is_its_formula(trained, n):
    finished = trained("Synchronous-SGD", "--workers", n)
    assert_close(flat(finished), synchronous(n, 20, [0.3 / n] * n))
    assert finished.summary["global_step"] == 20
    shard = (1437 + n - 1) // n  # of worker 0; that of the others may be smaller
    assert 20 * 1437 <= finished.summary["examples"] <= 20 * n * shard


def test_an_update_with_backups_is_the_mean_of_those_it_took(trained):
    """Whoever was first in an update, its gradient counts 1 / (n - b)."""
    finished = trained("Synchronous-SGD", "--workers", 3, "--backup_workers", 1)
    w, took = np.zeros(650), []
    for line in (finished.results / "updates.jsonl").read_text().splitlines():
        took.append(json.loads(line)["workers"])
        w = w - 0.3 / 2 * sum(gradient(k, 3)(w) for k in took[-1])
    assert len(took) == 20 and all(len(workers) == 2 for workers in took)
    assert_close(flat(finished), w)


@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.parametrize("example", ["AEASGD", "AEAMSGD"])
def test_the_default_moving_rate(example, n):
    """0.9 / n, so that the center moves as far for any number of workers."""
    defaults, _ = example_of(ROOT / example / "worker.py")
    parser = flags.parser(defaults, "")
    options = parser.parse_args(["--workers", str(n)])
    flags.check(options, defaults, parser)
    assert options.moving_rate == pytest.approx(0.9 / n)


@pytest.mark.parametrize("n", [2, pytest.param(3, marks=ANOTHER)])
def test_different_learning_rates_are_their_formula(trained, n):
    rates = [0.5, 0.1, 0.3][:n]
    finished = trained("Synchronous-SGD-different-learning-rates", "--workers", n,
                       "--learning_rates", ",".join(map(str, rates)))  # fmt: skip
    assert_close(flat(finished), synchronous(n, 20, rates))


@pytest.mark.parametrize(
    ("n", "window"), [pytest.param(2, 1, marks=ANOTHER), (2, 5), pytest.param(3, 5, marks=ANOTHER)]
)
def test_sagn_is_its_formula(trained, n, window):
    finished = trained("SAGN", "--workers", n, "--window", window)
    assert_close(flat(finished), synchronous(n, 20, [0.3 / n] * n, window, local_rate=0.3))


@pytest.mark.parametrize("mode", ["synchronous", "towers"])
@pytest.mark.parametrize("n", [2, pytest.param(3, marks=ANOTHER)])
def test_several_devices_are_synchronous_sgd(trained, mode, n):
    finished = trained("Multiple-GPUs-Single-Machine", "--mode", mode, "--workers", n)
    assert_close(flat(finished), synchronous(n, 20, [0.3 / n] * n))
    assert_close(flat(finished), flat(trained("Synchronous-SGD", "--workers", n)), 1e-6)
    assert finished.summary["workers"] == n
    assert len(finished.events(n - 1)) == 20


# The facts that schemes have in common, run against run.


@ANOTHER
def test_a_window_of_one_step_is_the_scheme_without(trained):
    agn = trained("AGN", "--workers", 1, "--window", 1)
    assert_close(flat(agn), flat(trained("HogWild", "--workers", 1)), 1e-6)
    sagn = trained("SAGN", "--workers", 2, "--window", 1)
    assert_close(flat(sagn), flat(trained("Synchronous-SGD", "--workers", 2)), 1e-6)


@ANOTHER
def test_synchronous_sgd_on_equal_shards_is_one_process(trained):
    """1,437 examples are three equal shards."""
    together = trained("Synchronous-SGD", "--workers", 3)
    assert_close(flat(together), flat(trained("Non-Distributed-Setup", "--workers", 1)), 1e-5)


@ANOTHER
def test_equal_learning_rates_are_synchronous_sgd(trained):
    default = trained("Synchronous-SGD-different-learning-rates", "--workers", 2)
    assert_close(flat(default), flat(trained("Synchronous-SGD", "--workers", 2)), 1e-6)


@ANOTHER
def test_without_momentum_aeamsgd_is_aeasgd(trained):
    without = trained("AEAMSGD", "--workers", 1, "--window", 5, "--momentum", 0)
    assert_close(flat(without), flat(trained("AEASGD", "--workers", 1, "--window", 5)), 1e-6)


@ANOTHER
def test_without_moving_rate_elastic_workers_are_alone(trained):
    """w~ never moves, and each worker's losses are those of SGD on its own shard."""
    finished = trained("AEASGD", "--workers", 2, "--window", 3, "--moving_rate", 0)
    assert not flat(finished).any()
    x, labels = digits()
    for k in (0, 1):
        g, w = gradient(k, 2), np.zeros(650)
        for event in finished.events(k):
            for _ in range(3):
                last, w = w, w - 0.3 * g(w)
            assert event["loss"] == pytest.approx(loss_at(last, x[k::2], labels[k::2]), rel=1e-4)


def test_an_elastic_exchange_conserves_the_sum(run, tmp_path):
    """w + w~ is the same before and after: measured in a copy of the example."""
    copy_example("AEASGD", tmp_path)
    script = tmp_path / "AEASGD" / "worker.py"
    source = script.read_text()
    probe = """
before = [a + b for a, b in zip(x, pulled)]
with tf.control_dependencies([step]):
    center, _ = copies.pull(params, global_step)
after = [a - q + b for a, q, b in zip(x, e, center)]
moved = tf.reduce_max([tf.reduce_max(tf.abs(q)) for q in e])
apart = tf.reduce_max([tf.reduce_max(tf.abs(a - b)) for a, b in zip(before, after)])
step = tf.print("moved", moved, "apart", apart, output_stream="file://" + flags.results + "/probe")

# 6."""
    assert source.count("\n# 6.") == 1
    script.write_text(source.replace("\n# 6.", probe))
    finished = run("AEASGD", "--workers", 1, "--steps", 20, root=tmp_path)
    values = [line.split() for line in (finished.results / "probe").read_text().splitlines()]
    moved, apart = ([float(line[i]) for line in values] for i in (1, 3))
    assert len(values) == 20
    assert max(moved) > 0.01
    assert max(apart) < 1e-5
