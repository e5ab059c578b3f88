"""Keras-Model: parameters and state follow the formulas, dropout drops other units in each step,
and what `export.py` writes is what the run has trained."""

import argparse
import importlib
import json
import re
import shutil
import subprocess
import sys

import gradients
import numpy as np
import pytest
import replays
import schemes
import tensorflow.compat.v1 as tf
from conftest import ROOT, copy_example, environment
from machine import seconds
from replays import EXACT, distance, flat, replayed
from test_transfers import assert_bytes, assert_one_transfer_each_way, probed

EXAMPLE, CLASSES = "Keras-Model", {"hogwild": "HogWild", "agn": "AGN", "local_sgd": "Local-SGD"}
NET = (ROOT / EXAMPLE / "network.py").read_text()
DIGITS = gradients.digits()
HIDDEN, EPSILON = 128, 1e-3  # of batch normalisation in Keras


def with_net(made: str) -> str:
    """network.py with another network."""
    changed, count = re.subn(
        r"    net = keras\.Sequential\(.*?\n    \)\n", f"    net = {made}\n", NET, flags=re.S
    )
    assert count == 1
    return changed


def flags(**changed) -> argparse.Namespace:
    usual = {"data": "digits", "hidden": HIDDEN, "bn_momentum": 0.9, "dropout": 0.5, "seed": 0,
             "model": "keras_net"}  # fmt: skip
    return argparse.Namespace(**usual | changed)


@pytest.fixture
def network(monkeypatch):
    """The folder's module. Other folders have modules of the same name."""
    monkeypatch.delitem(sys.modules, "network", raising=False)
    monkeypatch.syspath_prepend(ROOT / EXAMPLE)
    yield importlib.import_module("network")
    sys.modules.pop("network", None)


def of_catalogue(name: str, finished, gradient, size: int):
    own = argparse.Namespace(**finished.summary["flags"])
    return schemes.SCHEMES[CLASSES[name]](own, gradient, np.zeros(size))


LINEAR = """keras.Sequential([
        keras.layers.Flatten(), keras.layers.Dense(classes, kernel_initializer="zeros")
    ])"""


@pytest.mark.usefixtures("two_cores")
@pytest.mark.parametrize("scheme", CLASSES)
def test_it_follows_the_formula_of_its_scheme(run, tmp_path, scheme):
    """A network that is only a dense layer of zeros is `linear`. Examples are counted rightly."""
    root = copy_example(EXAMPLE, tmp_path / "mine", network=with_net(LINEAR))
    steps, window = 40, 5
    windows = [] if scheme == "hogwild" else ["--window", window]
    finished = run(EXAMPLE, "--scheme", scheme, "--batch_size", 0, "--learning_rate", 0.3,
                   "--steps", steps, *windows, root=root)  # fmt: skip
    gradient = gradients.gradients(2)
    ours = of_catalogue(scheme, finished, gradient, replays.SIZE)
    assert distance(flat(finished), replayed(finished, ours)) < EXACT
    other = "agn" if scheme == "hogwild" else "hogwild"  # a control, with the same kind of events
    if scheme != "local_sgd":
        wrong = of_catalogue(other, finished, gradient, replays.SIZE)
        assert distance(flat(finished), replayed(finished, wrong)) > 10 * EXACT
    batches = sum(task["local_steps"] for task in finished.summary["tasks"])
    expected = {"hogwild": steps, "agn": steps * window, "local_sgd": 2 * steps * window}[scheme]
    assert batches == expected
    shard = len(DIGITS[1]) / 2
    assert finished.summary["examples"] == pytest.approx(expected * shard, rel=0.01)


class WithState:
    """The default network without dropout in NumPy, its parameters and state as one flat vector.

    The schemes of the catalogue know only parameters. But each step moves the state by s_new - s,
    as if it were a parameter with the gradient -(s_new - s) / eta.
    """

    SHAPES = ((64, HIDDEN), (HIDDEN,), (HIDDEN,), (HIDDEN, 10), (10,), (HIDDEN,), (HIDDEN,))

    def __init__(self, start: np.ndarray, workers: int, eta: float, momentum: float):
        self._start, self._eta, self._momentum = start, eta, momentum
        x, labels = DIGITS
        self._shards = [(x[k::workers], labels[k::workers]) for k in range(workers)]

    def gradient(self, k: int, moved: np.ndarray) -> np.ndarray:
        """On worker k's shard, at the start plus `moved`."""
        x, labels = self._shards[k]
        ends = np.cumsum([np.prod(shape) for shape in self.SHAPES])
        parts = np.split(self._start + moved, ends[:-1])
        w, gamma, beta, v, b, *state = (p.reshape(s) for p, s in zip(parts, self.SHAPES))
        h = x @ w
        mean, variance = h.mean(0), h.var(0)
        deviation = np.sqrt(variance + EPSILON)
        normal = (h - mean) / deviation
        shown = np.maximum(gamma * normal + beta, 0)
        to_v, to_b = gradients.softmax_gradient(v, b, shown, labels)
        # Backwards, per example: the mean of the batch is in `errors`.
        scores = shown @ v + b
        p = np.exp(scores - scores.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        p[np.arange(len(labels)), labels] -= 1
        errors = (p / len(labels)) @ v.T * (shown > 0)
        to_normal = errors * gamma
        to_h = to_normal - to_normal.mean(0) - normal * (to_normal * normal).mean(0)
        changes = [(1 - self._momentum) * (new - s) for new, s in zip((mean, variance), state)]
        found = [x.T @ (to_h / deviation), (errors * normal).sum(0), errors.sum(0), to_v, to_b,
                 *[-change / self._eta for change in changes]]  # fmt: skip
        return np.concatenate([each.ravel() for each in found])


def first_values(network, own) -> np.ndarray:
    with tf.Graph().as_default(), tf.Session() as session:
        net = network.create(own)
        params, state = network.variables(net)
        session.run(tf.global_variables_initializer())
        return np.concatenate([value.ravel() for value in session.run([*params, *state])])


@pytest.mark.usefixtures("two_cores")
@pytest.mark.parametrize("scheme", CLASSES)
def test_moving_statistics_follow_their_formula(run, network, monkeypatch, scheme):
    """Those of two workers, together with the parameters, against NumPy."""
    eta, momentum = 0.1, 0.9
    own = ["--learning_rate", eta, "--bn_momentum", momentum, "--dropout", 0]
    own += [] if scheme == "hogwild" else ["--window", 3]
    finished = run(EXAMPLE, "--scheme", scheme, "--batch_size", 0, "--steps", 12, *own)
    start = first_values(network, flags(dropout=0.0)).astype("d")
    monkeypatch.setattr(replays, "SIZE", start.size)
    moved = flat(finished) - start
    state = np.s_[-2 * HIDDEN :]

    def apart(d: float) -> tuple[float, float]:
        """Of all, and of the state alone, relative to the largest."""
        net = WithState(start, 2, eta, d)
        expected = replayed(finished, of_catalogue(scheme, finished, net.gradient, start.size))
        alone = np.abs(moved[state] - expected[state]).max() / np.abs(expected[state]).max()
        return distance(moved, expected), alone

    assert max(apart(momentum)) < 1e-4
    assert apart(momentum + 0.05)[1] > 1e-3  # it would see another momentum


def test_a_step_sends_parameters_and_state_once_each_way(run, tmp_path):
    """And no random states: nothing else is read on the ps."""
    root = probed(EXAMPLE, tmp_path / "mine")
    finished = run(EXAMPLE, "--steps", 20, "--workers", 1, root=root)
    assert len(finished.parameters) == 7
    assert_one_transfer_each_way(finished)
    assert_bytes(finished)


def test_hogwild_has_no_window(run):
    finished = run(EXAMPLE, "--window", 5, ok=False)
    assert finished.code == 2
    assert "error: --window: HogWild has none: leave it out, or use" in finished.output


# Dropout


def losses_of(network, loss_of, loops: bool) -> list[float]:
    """Of four steps at the same parameters and on the same batch: only dropout makes them differ.
    `loss_of(net, w, s, batch)`."""
    x, labels = (part[:64] for part in DIGITS)
    with tf.Graph().as_default(), tf.Session() as session:
        net = network.create(flags())
        params, state = network.variables(net)
        batch = tf.constant(x.reshape(-1, 8, 8), tf.float32), tf.constant(labels)
        w, s = [p.read_value() for p in params], [p.read_value() for p in state]
        if loops:
            _, found = tf.while_loop(
                lambda t, _: t < 4,
                lambda t, seen: (t + 1, tf.concat([seen, [loss_of(net, w, s, batch)]], 0)),
                (0, tf.zeros([0])),
                shape_invariants=(tf.TensorShape([]), tf.TensorShape([None])),
                parallel_iterations=1,
            )
            session.run(tf.global_variables_initializer())
            return session.run(found).tolist()
        loss = loss_of(net, w, s, batch)
        session.run(tf.global_variables_initializer())
        return [float(session.run(loss)) for _ in range(4)]


def by_keras(net, w, s, batch):
    """The usual call: in a graph nobody runs the update of the random state."""
    return tf.losses.sparse_softmax_cross_entropy(batch[1], net(batch[0], training=True))


def with_own_states(net, w, s, batch):
    others = [v.value for v in net.non_trainable_variables]
    output, _ = net.stateless_call(w, others, batch[0], training=True)
    return tf.losses.sparse_softmax_cross_entropy(batch[1], output)


@pytest.mark.parametrize("loops", [False, True])
def test_each_step_drops_other_units(network, loops):
    def ours(*args):
        return network.gradients(*args)[0]

    for trap in (by_keras, with_own_states):
        assert len(set(losses_of(network, trap, loops))) == 1
    first, second = (losses_of(network, ours, loops) for _ in range(2))  # two workers
    assert len({*first, *second}) == 8


@pytest.mark.slow("three runs")
@pytest.mark.parametrize("scheme", CLASSES)
def test_two_workers_drop_different_units_in_each_step_of_a_call(run, tmp_path, scheme):
    """At a rate of almost 0, with the same full batch in both workers, only dropout changes the
    loss."""
    shuffled = np.random.default_rng(0).permutation(4)  # as an .npz is
    rows = np.empty(4, int)
    rows[shuffled] = [0, 0, 1, 1]
    x, labels = DIGITS[0][rows].astype("f"), DIGITS[1][rows]
    arrays = {"x_train": x, "y_train": labels, "x_test": x, "y_test": labels}
    np.savez(tmp_path / "own.npz", **arrays)
    often = ["--data", tmp_path / "own.npz", "--batch_size", 0, "--learning_rate", 1e-12]
    often += ["--scheme", scheme, "--steps", 12, "--steps_per_execution", 3]

    def losses(dropout: float) -> list[float]:
        finished = run(EXAMPLE, *often, "--dropout", dropout)
        return sorted(event["loss"] for k in (0, 1) for event in finished.events(k))

    same = 1e-6  # rounding
    assert np.ptp(losses(0)) < same
    found = losses(0.5)
    assert len(found) >= 12 and min(np.diff(found)) > same


# Layers


def test_gradients_are_dense_and_regularizers_count(network):
    import keras

    x, labels = np.array([[1, 2, 1], [0, 2, 2]]), np.array([0, 1])
    with tf.Graph().as_default(), tf.Session() as session:
        net = keras.Sequential([
            keras.layers.Embedding(5, 2), keras.layers.Flatten(),
            keras.layers.Dense(2, kernel_regularizer=keras.regularizers.L2(0.25)),
        ])  # fmt: skip
        net.build([None, 3])
        batch = tf.constant(x), tf.constant(labels)
        values = [tf.constant(np.random.default_rng(0).random(v.shape), tf.float32)
                  for v in net.trainable_variables]  # fmt: skip
        loss, grads, new = network.gradients(net, values, [], batch)
        output, _ = net.stateless_call(values, [], batch[0])
        plain = tf.losses.sparse_softmax_cross_entropy(labels, output)
        sparse = tf.gradients(plain, values)
        assert isinstance(sparse[0], tf.IndexedSlices) and new == []
        with pytest.raises(TypeError):
            0.1 * sparse[0]
        expected = tf.convert_to_tensor(sparse[0])
        # Values other than the network's own: nothing is initialised.
        found, added, same = session.run([grads, [loss - plain, values[1]], expected])
    np.testing.assert_allclose(found[0], same, rtol=1e-5)
    assert not found[0][3:].any() and found[0][2].any()
    assert added[0] == pytest.approx(0.25 * (added[1] ** 2).sum(), rel=1e-4)


WORDS = """keras.Sequential([
        keras.layers.Embedding(20, 8), keras.layers.LSTM(16), keras.layers.Dense(classes)
    ])"""


@pytest.mark.slow("three runs")
@pytest.mark.parametrize("scheme", CLASSES)
def test_embedding_and_lstm_learn(run, tmp_path, scheme):
    """Whether word 7 stands among six."""
    rng = np.random.default_rng(0)
    x = rng.integers(8, 20, (1000, 6))
    labels = np.arange(1000) % 2
    x[np.flatnonzero(labels), rng.integers(0, 6, 500)] = 7
    arrays = {
        "x_train": x[:800],
        "y_train": labels[:800],
        "x_test": x[800:],
        "y_test": labels[800:],
    }
    np.savez(tmp_path / "words.npz", **arrays)
    root = copy_example(EXAMPLE, tmp_path / "mine", network=with_net(WORDS))
    steps = 1500 if scheme == "hogwild" else 200
    finished = run(EXAMPLE, "--scheme", scheme, "--data", tmp_path / "words.npz", "--steps", steps,
                   "--learning_rate", 0.5, root=root)  # fmt: skip
    assert finished.summary["test_accuracy"] > 0.95
    assert [p.shape for p in finished.parameters] == [
        (20, 8),
        (8, 64),
        (16, 64),
        (64,),
        (16, 2),
        (2,),
    ]


MANY = """def _many(classes):
    def image(x):
        for layer in (
            keras.layers.Reshape((8, 8, 1)), keras.layers.RandomTranslation(0.1, 0.1),
            keras.layers.Conv2D(4, 3), keras.layers.SpatialDropout2D(0.1),
            keras.layers.DepthwiseConv2D(3), keras.layers.BatchNormalization(),
            keras.layers.SeparableConv2D(4, 1), keras.layers.GroupNormalization(2),
            keras.layers.MaxPool2D(), keras.layers.Conv2DTranspose(4, 3),
            keras.layers.SpectralNormalization(keras.layers.Conv2D(4, 3)),
            keras.layers.PReLU(), keras.layers.GlobalAveragePooling2D(),
        ):
            x = layer(x)
        return x

    def rows(x):
        x = keras.layers.LayerNormalization()(x)
        x = keras.layers.GaussianNoise(0.1)(x)
        x = keras.layers.MultiHeadAttention(2, 4, dropout=0.1)(x, x)
        x = keras.layers.Bidirectional(keras.layers.LSTM(4, return_sequences=True, dropout=0.1))(x)
        return keras.layers.SimpleRNN(4)(keras.layers.RMSNormalization()(x))

    def words(x):
        x = keras.layers.Discretization([0.25, 0.5, 0.75])(keras.layers.Flatten()(x))
        x = keras.layers.Embedding(4, 3)(x)
        return keras.layers.GRU(4, recurrent_dropout=0.1)(keras.layers.Conv1D(3, 8, 8)(x))

    x = keras.Input([8, 8])
    parts = keras.layers.Concatenate()([image(x), rows(x), words(x)])
    hidden = keras.layers.Dense(8, "gelu", kernel_regularizer="l2")(parts)
    return keras.Model(x, keras.layers.Dense(classes)(keras.layers.Dropout(0.1)(hidden)))
"""


def test_many_kinds_of_layers_train(run, tmp_path):
    """More than twenty, through pull, local steps and push; each of their parameters changes."""
    text = with_net("_many(classes)").replace("    net.build([None, *example])\n", "")
    root = copy_example(EXAMPLE, tmp_path / "mine", network=f"{text}\n\n{MANY}")
    finished = run(EXAMPLE, "--scheme", "agn", "--steps", 3, "--window", 2, "--workers", 1,
                   "--learning_rate", 0.5, root=root, patience=200)  # fmt: skip
    names = set(re.findall(r"keras\.layers\.(\w+)", MANY))
    assert len(names) >= 20
    code = (
        "import sys, argparse, json; sys.path[:0] = sys.argv[1:3]\n"
        "import network, numpy as np\n"
        "own = argparse.Namespace(**json.loads(sys.argv[3]))\n"
        "parts = network.variables(network.create(own))\n"
        "np.savez(sys.argv[4], *[v.numpy() for part in parts for v in part])\n"
    )
    own = json.dumps(finished.summary["flags"])
    where = tmp_path / "first.npz"
    subprocess.run([sys.executable, "-c", code, root / EXAMPLE, root, own, where], check=True,
                   env=environment())  # fmt: skip
    with np.load(where) as first, np.load(finished.results / "parameters.npz") as last:
        for a, b in zip(first.files, last.files, strict=True):
            assert first[a].shape == last[b].shape
            assert np.abs(first[a] - last[b]).max() > 0, b


# export.py

LOADED = """
import json, sys
import keras, numpy as np, tensorflow as tf
where, data = sys.argv[1:]
assert "common" not in sys.modules
with np.load(data) as file:
    x, labels = file["x"], file["labels"]
net = keras.saving.load_model(f"{where}/model.keras")
served = tf.saved_model.load(f"{where}/served")
a, b = (np.asarray(output, "d") for output in (net(x), served.serve(x)))
ends = np.log(np.exp(a - a.max(1, keepdims=True)).sum(1)) + a.max(1)
print(json.dumps({"apart": np.abs(a - b).max(), "accuracy": np.mean(a.argmax(1) == labels),
                  "loss": np.mean(ends - a[np.arange(len(labels)), labels]),
                  "same": bool(np.abs(np.asarray(net(x, training=True)) - a).max() < 0.01)}))
"""


def export(*args):
    return subprocess.run([sys.executable, ROOT / EXAMPLE / "export.py", *args], text=True,
                          capture_output=True, env=environment(), timeout=seconds(120))  # fmt: skip


def test_what_it_exports_is_what_the_run_has_trained(default_run, tmp_path):
    """Loaded in another process, which does not know this collection. The run was evaluated with
    the moving statistics, and nothing dropped."""
    finished = default_run(EXAMPLE)
    assert finished.summary["test_accuracy"] >= 0.96
    results = tmp_path / "results"
    shutil.copytree(finished.results, results)
    for _ in range(2):  # the second replaces the first
        done = export(results)
        assert done.returncode == 0, done.stderr
    assert sorted(
        path.name for path in results.iterdir() if not (finished.results / path.name).exists()
    ) == ["model.keras", "served"]
    accuracy = finished.summary["test_accuracy"]
    assert done.stdout.splitlines()[-1] == f"test accuracy {accuracy:.2%}"
    assert all(name in done.stdout for name in ("model.keras", "served"))
    x, labels = gradients.digits("test")
    np.savez(tmp_path / "test.npz", x=x.reshape(-1, 8, 8).astype("f"), labels=labels)
    env = environment()
    env.pop("PYTHONPATH", None)
    command = [sys.executable, "-c", LOADED, results, tmp_path / "test.npz"]
    shown = subprocess.run(command, text=True, capture_output=True, cwd=tmp_path, env=env,
                           timeout=seconds(120), check=False)  # fmt: skip
    assert shown.returncode == 0, shown.stderr
    found = json.loads(shown.stdout.splitlines()[-1])
    assert found["apart"] < 1e-6
    assert found["accuracy"] == pytest.approx(accuracy, abs=1e-9)
    assert found["loss"] == pytest.approx(finished.summary["test_loss"], rel=1e-4)
    assert not found["same"]


def test_a_folder_that_it_cannot_export_gets_a_sentence(tmp_path):
    def a_run(name: str, own: dict, shape=(3,)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "summary.json").write_text(json.dumps({"flags": own}))
        np.savez(folder / "parameters.npz", weights=np.zeros(shape))
        return folder

    cut = a_run("cut", vars(flags()))
    (cut / "summary.json").write_text('{"flags": ')
    half = a_run("half", vars(flags()))
    (half / "parameters.npz").write_bytes((half / "parameters.npz").read_bytes()[:90])
    for args, words in (
        ([], "give one results folder"),
        ([tmp_path], "summary.json is missing: give the results folder of a run that has ended"),
        ([cut], "cut cannot be read as the results of a run"),
        ([half], "half cannot be read as the results of a run"),
        ([a_run("other", {"model": "mlp"})], "other holds a run of another example"),
        ([a_run("changed", vars(flags()))], "was it changed after the run?"),
    ):
        done = export(*args)
        assert done.returncode == 2
        last = done.stderr.strip().splitlines()[-1]
        assert last.startswith("error: ") and words in last
    for folder in tmp_path.iterdir():
        assert sorted(path.name for path in folder.iterdir()) == ["parameters.npz", "summary.json"]
