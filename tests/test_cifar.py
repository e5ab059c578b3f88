"""CIFAR-10: input, networks, updates and evaluation state, against NumPy and Keras."""

import argparse
import hashlib
import importlib
import math
import os
import re
import runpy
import subprocess
import sys
import threading

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from conftest import (
    ROOT,
    Finished,
    copy_example,
    environment,
    eventually,
    initialise,
    kill_and_see_it_back,
    wait_for_checkpoint,
)
from machine import seconds
from test_data import Server, cifar_batch, one_sentence, tar

from common import data
from common.datasets import download

FOLDER = ROOT / "CIFAR-10"
sys.path.insert(0, str(FOLDER))
cnn, images, progress, xception = map(
    importlib.import_module, ("cnn", "images", "progress", "xception")
)
sys.path.remove(str(FOLDER))
tf.disable_eager_execution()

SMALL = ("--data", "synthetic", "--model", "xception", "--width", 0.01, "--image_size", 24,
         "--batch_size", 8)  # fmt: skip
RNG = np.random.default_rng(0)


def flags(**changed) -> argparse.Namespace:
    usual = {"data": "synthetic", "model": "cnn", "image_size": 71, "width": 0.25, "seed": 0,
             "batch_size": 32, "log_frequency": 20, "decay_steps": 300, "delay": None,
             "data_url": None, "steps_per_execution": 1}  # fmt: skip
    return argparse.Namespace(**usual | changed)


def evaluated(make, **feed):
    """Calls `make` on arrays in a new graph; returns the values of its tensors."""
    with tf.Graph().as_default(), tf.Session() as session:
        made = make(**{name: tf.constant(value) for name, value in feed.items()})
        session.run(tf.global_variables_initializer())
        return session.run(made)


# The networks


def count(shapes) -> int:
    return sum(math.prod(shape) for shape in shapes)


def test_xception_has_the_published_parameters():
    params, normalised = xception.shapes(1000, 1.0)
    trained = count(shape for shape, _ in params)
    assert trained == 22_855_952
    assert trained + 2 * sum(normalised) == 22_910_480


def test_the_cnn_has_the_tutorials_parameters():
    """Two convolutions, two poolings by 2, 24 x 24 images: shapes written out."""
    by_hand = (5 * 5 * 3 + 1) * 64 + (5 * 5 * 64 + 1) * 64
    by_hand += (6 * 6 * 64 + 1) * 384 + (384 + 1) * 192 + (192 + 1) * 10
    assert by_hand == 1_068_298
    with tf.Graph().as_default():
        params, moving = cnn.create(flags(), 10)
        assert (count(p.shape.as_list() for p in params), moving) == (by_hand, [])


@pytest.mark.parametrize("width", [0.01, 0.25, 0.5, 1, 1.5])
def test_the_width_gives_whole_channels(width):
    for channels in (32, 64, 128, 256, 728, 1024, 1536, 2048):
        scaled = xception.scaled(channels, width)
        assert isinstance(scaled, int) and scaled % 8 == 0 and scaled >= 8
        assert abs(scaled - width * channels) <= 4 or scaled == 8
    params, normalised = xception.shapes(10, width)
    assert params[-1] == ([10], 0.0) and len(params) == 156 and len(normalised) == 40


def test_the_cnn_starts_as_in_the_tutorial():
    with tf.Graph().as_default(), tf.Session() as session:
        params, _ = cnn.create(flags(seed=3), 10)
        session.run(tf.global_variables_initializer())
        values = session.run(params)
    for weights, deviation in zip(values[0::2], (0.05, 0.05, 0.04, 0.04, 1 / 192), strict=True):
        assert np.abs(weights).max() <= 2 * deviation * 1.0001  # a truncated normal distribution
        assert weights.std() == pytest.approx(0.88 * deviation, rel=0.05)
    for biases, start in zip(values[1::2], (0, 0.1, 0.1, 0.1, 0), strict=True):
        np.testing.assert_array_equal(biases, np.full_like(biases, start))


def convolved(x, filters):
    """A 5x5 convolution with zeros at the edges, in NumPy."""
    x = np.pad(x, [(0, 0), (2, 2), (2, 2), (0, 0)])
    side = x.shape[1] - 4
    return sum(x[:, i : i + side, j : j + side] @ filters[i, j] for i in range(5) for j in range(5))


def pooled(x):
    """The largest of 3x3 at every second position; nothing lies past the right and lower edges."""
    x = np.pad(x, [(0, 0), (0, 1), (0, 1), (0, 0)], constant_values=-np.inf)
    ends = x.shape[1] - 2
    parts = [x[:, i : i + ends : 2, j : j + ends : 2] for i in range(3) for j in range(3)]
    return np.max(parts, axis=0)


def locally_normalised(x):
    squares = np.pad(x**2, [(0, 0), (0, 0), (0, 0), (4, 4)])
    total = sum(squares[..., i : i + x.shape[-1]] for i in range(9))
    return x / (1 + 0.001 / 9 * total) ** 0.75


def test_the_cnn_computes_what_the_tutorials_does():
    def make(x):
        params, _ = cnn.create(flags(), 10)
        logits, statistics = cnn.predict(params, 30 * x)  # scaled so that the normalisation matters
        decay = tf.gradients(cnn.weight_decay(params), params)
        assert statistics == []
        return params, logits, [decay[4], decay[6]], [d is None for d in decay]

    x = RNG.normal(size=(3, 24, 24, 3)).astype(np.float32)
    params, logits, decay, without = evaluated(make_bools(make), x=x)
    h = locally_normalised(pooled(np.maximum(convolved(30 * x, params[0]) + params[1], 0)))
    h = pooled(locally_normalised(np.maximum(convolved(h, params[2]) + params[3], 0)))
    h = h.reshape(3, -1)
    for i in (4, 6):
        h = np.maximum(h @ params[i] + params[i + 1], 0)
    np.testing.assert_allclose(logits, h @ params[8] + params[9], rtol=1e-3, atol=1e-4)
    for gradient, i in zip(decay, (4, 6)):  # of 0.004 |w|^2 / 2
        np.testing.assert_allclose(gradient, 0.004 * params[i], rtol=1e-5)
    assert list(without) == [i not in (4, 6) for i in range(10)]


def make_bools(make):
    """Turns Python booleans into constants that can be fetched."""

    def made(**tensors):
        *rest, bools = make(**tensors)
        return *rest, tf.constant(bools)

    return made


def test_xceptions_weight_decay_is_the_papers():
    """It pulls filters and weights towards 0, but not biases or those of batch normalisation."""
    shapes = [shape for shape, _ in xception.shapes(10, 0.01)[0]]
    values = [RNG.normal(size=shape).astype(np.float32) for shape in shapes]

    def make():
        params = [tf.constant(value) for value in values]
        decay = xception.weight_decay(params)
        gradients = tf.gradients(decay, params)
        with_one = [gradient for gradient in gradients if gradient is not None]
        return decay, with_one, [gradient is None for gradient in gradients]

    decay, gradients, without = evaluated(make_bools(make))
    weights = [value for value in values if value.ndim > 1]
    assert decay == pytest.approx(1e-5 / 2 * sum(np.sum(w**2) for w in weights), rel=1e-4)
    for gradient, w in zip(gradients, weights, strict=True):
        np.testing.assert_allclose(gradient, 1e-5 * w, rtol=1e-5)
    assert list(without) == [value.ndim == 1 for value in values]


def test_batch_normalisation_in_training_and_in_evaluation(monkeypatch):
    """Training uses the batch's mean and variance, and returns them. Evaluation uses the moving
    ones, so that an image's result does not depend on the rest of the batch."""
    monkeypatch.setattr(xception, "MIDDLE", 1)  # fewer layers build faster
    options = flags(width=0.01)

    def make(x):
        params, moving = xception.create(options, 10)
        together, statistics = xception.predict(params, x)
        alone, _ = xception.predict(params, x[:1])
        shifted = [m + 0.5 for m in moving]
        known, none = xception.predict(params, x, shifted)
        known_alone, _ = xception.predict(params, x[:1], shifted)
        other, _ = xception.predict(params, x, moving)
        assert none == []
        for statistic, variable in zip(statistics, moving, strict=True):
            assert statistic.shape == variable.shape and not variable.trainable
        assert [m.op.name.rpartition("_")[0] for m in moving[:2]] == [
            "moving_mean", "moving_variance"]  # fmt: skip
        return params[0], statistics[:2], together, alone, known, known_alone, other

    x = RNG.normal(size=(4, 24, 24, 3)).astype(np.float32)
    filters, (mean, variance), together, alone, known, known_alone, other = evaluated(make, x=x)
    first = np.stack([  # 3x3 at every second position
        sum(x[:, i + a, j + b] @ filters[a, b] for a in range(3) for b in range(3))
        for i in range(0, 22, 2) for j in range(0, 22, 2)])  # fmt: skip
    np.testing.assert_allclose(mean, first.mean(axis=(0, 1)), atol=1e-5)
    np.testing.assert_allclose(variance, first.var(axis=(0, 1)), rtol=1e-4)
    assert np.abs(together[0] - alone[0]).max() > 1e-3
    np.testing.assert_allclose(known[0], known_alone[0], rtol=1e-4, atol=1e-6)
    assert np.abs(known - other).max() > 1e-3


KERAS = """
import argparse, os, sys
import numpy as np
import tensorflow as tf
import xception

shapes, normalised = xception.shapes(10, 1.0)
rng = np.random.default_rng(0)
params = [rng.normal(size=s).astype("f") * (0.05 if len(s) > 1 else 0.1) + (len(s) == 1)
          for s, _ in shapes]
moving = []
for channels in normalised:
    moving.append(rng.normal(size=channels).astype("f") * 0.1)
    moving.append(rng.uniform(0.5, 2, channels).astype("f"))
model = tf.keras.applications.Xception(
    weights=None, input_shape=(71, 71, 3), classes=10, classifier_activation=None)
assert model.count_params() == sum(map(np.size, params + moving))
# Keras names the layers after blocks; the convolutions beside blocks 2, 3, 4, 13 are numbered.
beside = iter([l for l in model.layers if type(l).__name__ == "Conv2D" and "block" not in l.name])
beside_bn = iter([l for l in model.layers
                  if type(l).__name__ == "BatchNormalization" and "block" not in l.name])
names = ("block1_conv1", "block1_conv2")
pairs = [(model.get_layer(name), model.get_layer(name + "_bn")) for name in names]
for block in range(2, 15):
    if block in (2, 3, 4, 13):
        pairs.append((next(beside), next(beside_bn)))
    for i in range(1, 4 if 5 <= block <= 12 else 3):
        name = f"block{block}_sepconv{i}"
        pairs.append((model.get_layer(name), model.get_layer(name + "_bn")))
p, m = iter(params), iter(moving)
for layer, normalisation in pairs:
    layer.set_weights([next(p) for _ in layer.get_weights()])
    normalisation.set_weights([next(p), next(p), next(m), next(m)])
model.get_layer("predictions").set_weights([next(p), next(p)])
assert next(p, None) is None and next(m, None) is None
x = rng.normal(size=(2, 71, 71, 3)).astype("f")
theirs = model(x, training=False).numpy()
ours, _ = xception.predict(params, tf.constant(x), moving)
print("apart", np.abs(ours.numpy() - theirs).max() / np.abs(theirs).max())
"""


@pytest.mark.slow("builds Keras' Xception")
def test_xception_computes_what_keras_does():
    """Keras' own network with our parameters and moving statistics, at width 1."""
    done = subprocess.run(
        [sys.executable, "-c", KERAS], capture_output=True, text=True,
        env=environment(PYTHONPATH=f"{ROOT}{os.pathsep}{FOLDER}"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert float(re.search(r"apart (\S+)", done.stdout)[1]) < 1e-3


# The input


def test_the_data_have_cifars_shape():
    for name in ("digits", "synthetic"):
        for part in ("train", "test"):
            x, labels = images.load(flags(data=name), part)
            assert (x.dtype, x.shape[1:], labels.dtype) == (np.uint8, (32, 32, 3), np.int64)
            assert len(x) == len(labels) and set(labels) == set(range(10)) and x.std() > 30
    whole, labels = images.load(flags(data="digits"), "train")
    small, _ = data.load(flags(data="digits"), "train")
    np.testing.assert_array_equal(whole[:, 4:28:3, 4:28:3, 1], np.rint(255 * small))
    assert not whole[:, :4].any() and not whole[:, :, 28:].any()  # the frame
    for k in (0, 1):
        own, own_labels = images.load(flags(data="digits"), "train", k, 2)
        np.testing.assert_array_equal(own, whole[k::2])
        np.testing.assert_array_equal(own_labels, labels[k::2])


def test_distortions_are_the_tutorials():
    """Each result is one of the 81 crops, or its mirror image, with a different contrast. The
    brightness shifts all pixels alike, so standardising removes it."""
    image = RNG.integers(0, 256, (32, 32, 3), np.uint8)
    image[..., 0] //= 2  # different means per channel reveal the contrast
    image[..., 2] = image[..., 2] // 2 + 128
    number = 300
    with tf.Graph().as_default(), tf.Session() as session:
        seeds = tf.stack([tf.zeros([number], tf.int64), tf.range(number, dtype=tf.int64)], axis=1)
        made = tf.map_fn(lambda seed: images.distorted(tf.constant(image), seed), seeds,
                         fn_output_signature=tf.float32)  # fmt: skip
        results, again = session.run([made, images.distorted(tf.constant(image), seeds[5])])
    np.testing.assert_array_equal(results[5], again)
    windows = {}
    for top in range(9):
        for left in range(9):
            crop = image[top : top + 24, left : left + 24].astype(float)
            windows[top, left, False], windows[top, left, True] = crop, crop[:, ::-1]
    keys = list(windows)
    centred = np.stack([w - w.mean(axis=(0, 1)) for w in windows.values()]).reshape(162, -1)
    centred /= np.linalg.norm(centred, axis=1, keepdims=True)
    seen, factors = [], []
    for result in results:
        np.testing.assert_allclose([result.mean(), result.std()], [0, 1], atol=1e-3)
        y = (result - result.mean(axis=(0, 1))).ravel()
        match = centred @ y / np.linalg.norm(y)
        assert match.max() > 0.9999 and np.sum(match > 0.9) == 1
        key = keys[match.argmax()]
        seen.append(key)
        x = windows[key]
        slope = y @ (x - x.mean(axis=(0, 1))).ravel() / np.sum((x - x.mean(axis=(0, 1))) ** 2)
        means = (result.mean(axis=(0, 1)), x.mean(axis=(0, 1)))
        scale = (means[0][2] - means[0][0]) / (means[1][2] - means[1][0])
        factors.append(slope / scale)
    assert {top for top, _, _ in seen} == {left for _, left, _ in seen} == set(range(9))
    assert 0.35 < np.mean([mirrored for *_, mirrored in seen]) < 0.65
    assert 0.199 < min(factors) < 0.3 and 1.7 < max(factors) < 1.801
    offsets = np.array([key[:2] for key in seen], float)
    draws = np.column_stack([offsets, [key[2] for key in seen], factors])
    correlations = np.corrcoef(draws.T) - np.eye(4)
    assert np.abs(correlations).max() < 0.25  # each is drawn independently


def test_evaluation_sees_the_standardised_centre():
    x = RNG.integers(0, 256, (5, 32, 32, 3), np.uint8)
    found = evaluated(lambda x: images.central(data.scaled(x)), x=x)
    centre = x[:, 4:28, 4:28].astype(float)
    mean, std = (f(centre, axis=(1, 2, 3), keepdims=True) for f in (np.mean, np.std))
    np.testing.assert_allclose(found, (centre - mean) / std, atol=1e-4)


def dealt(monkeypatch, epochs: int, worker: int, workers: int, **changed) -> np.ndarray:
    """[epochs, shard]: the order in which a pipeline delivers examples, numbered by label."""
    x, numbers = np.zeros((60, 32, 32, 3), np.uint8), np.arange(60)
    monkeypatch.setattr(images, "load", lambda f, p, k, n: (x[k::n], numbers[k::n]))
    with tf.Graph().as_default(), tf.Session() as session:
        batch = images.batches(flags(batch_size=10, **changed), worker, workers)()
        initialise(session)
        labels = [session.run(batch) for _ in range(epochs * 60 // workers // 10)]
    size = changed.get("image_size", 24)
    assert {images.shape for images, _ in labels} == {(10, size, size, 3)}
    return np.concatenate([labels for _, labels in labels]).reshape(epochs, -1)


def test_every_epoch_delivers_the_workers_shard_in_a_new_order(monkeypatch):
    epochs = dealt(monkeypatch, 3, 1, 2)
    np.testing.assert_array_equal(np.sort(epochs), [np.arange(1, 60, 2)] * 3)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    np.testing.assert_array_equal(dealt(monkeypatch, 3, 1, 2), epochs)
    assert not np.array_equal(dealt(monkeypatch, 3, 1, 2, seed=1), epochs)
    dealt(monkeypatch, 1, 0, 2, model="xception", image_size=40)  # enlarged


def test_images_are_distorted_by_several_threads_ahead_of_time(monkeypatch):
    """The first image waits for another thread to distort a second one at the same time. After one
    batch is taken, the next ones are made although nobody asks for them."""
    inside, made, go_on = [], [], threading.Event()

    def wait_for_another():
        inside.append(None)
        if len(inside) > 1:
            go_on.set()
        made.append(go_on.wait(seconds(5)))
        go_on.set()
        inside.pop()

    def distorted(image, seed):
        with tf.control_dependencies([tf.numpy_function(wait_for_another, [], [])]):
            return tf.zeros([24, 24, 3])

    monkeypatch.setattr(images, "distorted", distorted)
    monkeypatch.setattr(images.cluster, "cores", lambda: 2)
    with tf.Graph().as_default(), tf.Session() as session:
        batch = images.batches(flags(batch_size=4), 0, 1)()
        initialise(session)
        session.run(batch)
        assert made[0], "one image at a time"
        # Without batches kept ready, the two threads would be at most one image ahead each.
        assert eventually(lambda: len(made) >= 5 * 4, 10), len(made)


def test_the_wait_for_data_is_measured():
    """Each element takes 50 ms to make and nothing else happens, so all that time is waiting."""

    def waited(pause: float) -> float:
        def slow(k):
            with tf.control_dependencies(
                [tf.numpy_function(lambda: __import__("time").sleep(pause), [], [])]
            ):
                return tf.fill([2, 3], tf.cast(k, tf.float32)), tf.zeros([2], tf.int64)

        with tf.Graph().as_default(), tf.Session() as session:
            dataset = tf.data.Dataset.range(10**6).map(slow)
            x, _, total = progress.timed(data.pipeline(dataset, flags()))
            initialise(session)
            found = [session.run([x, total]) for _ in range(12)]
        assert [values[0, 0] for values, _ in found] == list(range(12))
        totals = [total for _, total in found]
        assert totals == sorted(totals) and totals[0] >= 0
        return totals[-1]

    assert waited(0.05) >= 0.5
    assert waited(0.0) < 0.25 * seconds(1)


def test_the_line_that_a_worker_prints(monkeypatch, capsys):
    """It appears at every multiple of --log_frequency updates and after the last one, and covers
    those since the one before."""
    options = flags(batch_size=16, log_frequency=10)
    hook = progress.Progress(argparse.Namespace(flags=options, name="worker 1"), None, None, None)
    clock = iter(range(100, 200))
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))  # one second per step
    hook.after_create_session(None, None)
    for number in range(0, 30, 3):  # every third update is this worker's: 1, 4, 7, 10, ...
        values = {"number": number, "loss": 2.5, "waited": 0.1 * number / 3}
        hook.after_run(None, argparse.Namespace(results=values))
    hook.end(None)
    expected = "16.0 examples/sec  1.000 sec/batch  waiting for data 10.0%"
    assert capsys.readouterr().out.splitlines() == [
        f"> [worker 1] step 10  loss 2.5  {expected}",
        f"> [worker 1] step 22  loss 2.5  {expected}",
        f"> [worker 1] step 28  loss 2.5  {expected}",
        f"> [worker 1] overall  {expected}",
    ]


# The flags, and the data


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"batch_size": 0}, ("--batch_size 0", "1 or more")),
        ({"log_frequency": 0}, ("--log_frequency 0", "1 or more")),
        ({"decay_steps": -1}, ("--decay_steps -1", "1 or more")),
        ({"width": 0.0}, ("--width 0", "above 0")),
        ({"width": 5.0}, ("--width 5", "at most 4")),
        ({"image_size": 8}, ("--image_size 8", "from 24")),
    ],
)
def test_a_mistake_in_a_flag_ends_with_a_one_line_error(capsys, changed, words):
    images.check(flags())
    with pytest.raises(SystemExit) as ended:
        images.check(flags(**changed))
    assert ended.value.code == 2
    one_sentence(capsys.readouterr().err, *words)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("--data", "mnist"), ("--data", "cifar10, digits, synthetic", "'mnist'")),
        (("--model", "mlp"), ("--model", "cnn, xception", "'mlp'")),
        (("--scheme", "both"), ("--scheme", "asynchronous, synchronous", "'both'")),
        ((), ("cannot download", "--data_url", "--data digits", "--data synthetic")),
    ],
)
def test_a_one_line_error_on_the_command_line(tmp_path, given, words):
    """Without flags it needs CIFAR-10, but here there is no network."""
    command = ["bash", str(FOLDER / "run.sh"), "--results", str(tmp_path / "results"), *given]
    env = environment(DATA_DIR=str(tmp_path / "cache"))
    if not given:
        command += ["--data_url", "http://127.0.0.1:9"]  # no server there
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=seconds(60))
    assert done.returncode == 2
    one_sentence(done.stderr, *words)


# Runs


DECAY = 0.1  # of recorded runs
RECORDER = """
import numpy as np
import tensorflow.compat.v1 as tf


class Recorder(tf.train.SessionRunHook):
    def __init__(self, task, fetches):
        self._results, self._index, self._fetches = task.flags.results, task.index, fetches

    def after_create_session(self, session, coord):
        found = session.run({v.op.name: v for v in tf.global_variables()})
        np.savez(f"{self._results}/begin-{found['global_step']}-{self._index}.npz", **found)
        self._last = -1

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(self._fetches)

    def after_run(self, run_context, run_values):
        number, *values = run_values.results
        if number != self._last:  # a second push of a round, after a recovery, is dropped
            np.savez(f"{self._results}/push-{number}-{self._index}.npz", *values)
        self._last = number
"""


def edited(script: str, changes: dict[str, str]) -> str:
    source = (FOLDER / f"{script}.py").read_text()
    for old, new in changes.items():
        assert source.count(old) == 1, f"{script}.py: {old}"
        source = source.replace(old, new)
    return source


def recorded(to):
    """A copy of the example whose runs can be replayed. Each worker writes what is on the ps when a
    session begins; and for each update, before a checkpoint contains it, the batch and its push.

    One thread on the ps applies one update after another. Weight decay is strong enough to see.
    Xception's middle flow has one block, not eight: most of such a run's time is spent on the
    graph; the tests above check the whole network."""
    scripts = {"recorder": RECORDER}
    for name, number, pushed in (
        ("worker", "update.number", "push.values"),
        ("synchronous", "token.number", "sent"),
    ):
        changes = {
            "import progress\n": "import progress\nimport recorder\n",
            "hooks=[": f"hooks=[recorder.Recorder(task, [{number}, x, labels, *{pushed}]), ",
        }
        if name == "synchronous":
            push = "    step = rounds.push(push, token)"
            changes[push] = f"    sent = [*grads, *statistics]\n{push}"
        scripts[name] = edited(name, changes)
    one_thread = "task.config.inter_op_parallelism_threads = 1\nserver ="
    scripts["ps"] = edited("ps", {"server =": one_thread})
    changes = {"MIDDLE = 8 ": "MIDDLE = 1 ", "DECAY = 1e-5 ": f"DECAY = {DECAY} "}
    scripts["xception"] = edited("xception", changes)
    return copy_example("CIFAR-10", to, **scripts)


def arrays(path) -> dict[str, np.ndarray]:
    with np.load(path) as file:
        return {name: file[name] for name in file.files}


def pushes(results, number: int) -> list[list[np.ndarray]]:
    """What made an update: from each worker, x, labels, gradients and statistics."""
    paths = sorted(results.glob(f"push-{number}-*.npz"))
    return [list(arrays(path).values()) for path in paths]


def replay(results, options) -> tuple[list[list[str]], list[dict[str, np.ndarray]]]:
    """Replays a recorded run.

    Returns:
        The names of the parameters, of their averages and of the moving statistics; and the values
        of all of them after 0, 1, 2, ... updates."""
    with tf.Graph().as_default(), tf.Session() as session:
        made = xception.create(options, 10)
        session.run(tf.global_variables_initializer())
        w, moving = session.run(made)
        trained, untrained = ([variable.op.name for variable in part] for part in made)
    shadows = [f"{name}/ExponentialMovingAverage" for name in trained]
    names, average = [*trained, *shadows, *untrained], w
    history = [dict(zip(names, [*w, *average, *moving], strict=True))]
    for number in range(options.steps):
        pushed = [values[2:] for values in pushes(results, number)]
        assert len(pushed) == (options.workers if options.scheme == "synchronous" else 1)
        push = [np.mean(parts, axis=0) for parts in zip(*pushed, strict=True)]
        eta = options.learning_rate * 0.1 ** (number // options.decay_steps)
        w = [p - eta * g for p, g in zip(w, push)]
        a, d = (min(limit, (1 + number) / (10 + number)) for limit in (0.9999, 0.99))
        average = [a * old + (1 - a) * p for old, p in zip(average, w)]
        moving = [d * m + (1 - d) * s for m, s in zip(moving, push[len(w) :], strict=True)]
        history.append(dict(zip(names, [*w, *average, *moving], strict=True)))
    return [trained, shadows, untrained], history


def compare(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=2e-4, atol=2e-5, err_msg=name)


def length(parts) -> float:
    """Of all the arrays together, as one vector."""
    return float(np.sqrt(sum(np.sum(np.square(part, dtype=float)) for part in parts)))


def apart(first, second) -> float:
    """The largest difference."""
    return max(np.abs(a - b).max() for a, b in zip(first, second, strict=True))


def checkpoint(folder) -> dict[str, np.ndarray]:
    reader = tf.train.load_checkpoint(str(folder / "checkpoints"))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


RECORDED = (*SMALL, "--learning_rate", 0.05, "--decay_steps", 25, "--log_frequency", 10)


def test_a_run_matches_its_formula(run, tmp_path, monkeypatch):
    """The synchronous scheme: `test_killed_ps_comes_back`."""
    monkeypatch.setattr(xception, "MIDDLE", 1)  # as in the copy
    finished = run("CIFAR-10", *RECORDED, "--steps", 40, "--scheme", "asynchronous",
                   root=recorded(tmp_path / "mine"), curves=True)  # fmt: skip
    assert finished.summary["global_step"] == 40
    assert finished.summary["examples"] == 40 * 8
    assert (finished.results / "curves.png").is_file()
    for k in (0, 1):
        if len(finished.events(k)) > 14:  # an asynchronous worker may come late
            steps = steps_shown(finished, k)
            tens = [step // 10 for step in steps]
            assert tens[-2:] == sorted(tens[-2:])  # the last line is the worker's last step
            assert tens[:-1] == sorted(set(tens[:-1]))  # each multiple of --log_frequency, once
    matches_its_formula(finished)


def matches_its_formula(finished) -> tuple[list[list[str]], list[dict[str, np.ndarray]]]:
    """Replays parameters, averages and moving statistics from what was pushed: gradients of loss
    and weight decay. The run's results on the test set use the averages and the moving statistics.

    Returns what `replay` does."""
    summary = finished.summary
    options = argparse.Namespace(**summary["flags"])
    names, history = replay(finished.results, options)
    saved = checkpoint(finished.results)
    compare(saved, history[-1])
    newest_w, averages, known = ([saved[name] for name in part] for part in names)
    for value, parameter in zip([*newest_w, *known], finished.parameters, strict=True):
        np.testing.assert_array_equal(value, parameter)
    assert apart(averages, newest_w) > 3e-4  # the average is not the newest
    check_gradients(finished, options, names[0], history)

    # Evaluation
    x, labels = images.load(options, "test")
    with tf.Graph().as_default(), tf.Session() as session:
        shown = images.sized(images.central(tf.constant(x, tf.float32) / 255), options)
        outputs = [
            xception.predict(params, shown, statistics)[0]
            for params, statistics in ((averages, known), (newest_w, known), (averages, None))
        ]
        averaged, newest, by_batch = session.run(outputs)
    assert summary["test_accuracy"] == pytest.approx(
        np.mean(averaged.argmax(1) == labels), abs=3e-3
    )
    without = summary["test_accuracy_without_average"]
    assert without == pytest.approx(np.mean(newest.argmax(1) == labels), abs=3e-3)
    assert summary["test_loss"] == pytest.approx(cross_entropy(averaged, labels), rel=2e-4)
    # With the batch's statistics the result would be different.
    loss, share = cross_entropy(by_batch, labels), np.mean(by_batch.argmax(1) == labels)
    same = summary["test_loss"] == pytest.approx(loss, rel=4e-4)
    assert not (same and summary["test_accuracy"] == pytest.approx(share, abs=6e-3))
    keeps_the_contract(finished)
    return names, history


def number_of(path) -> int:
    return int(path.name.split("-")[1])


def check_gradients(finished, options, trained, history) -> None:
    """Some of those pushed are those of the loss plus DECAY w, for filters and weights w."""
    workers = range(options.workers)
    pulled_at = {e["global_step"] - 1: e["pulled_at"] for k in workers for e in finished.events(k)}
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [8, 24, 24, 3])
        labels = tf.placeholder(tf.int64, [8])
        w = [tf.placeholder(tf.float32, history[0][name].shape) for name in trained]
        logits, _ = xception.predict(w, x)
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        gradients = session.make_callable(tf.gradients(tf.reduce_mean(loss), w), [x, labels, *w])
        # What the last steps before its death measured dies with a ps; so does their number, if
        # it is after an update's checkpoint, before the answer.
        begun = max(map(number_of, finished.results.glob("begin-*-0.npz")))
        assert set(pulled_at) >= set(range(begun + 1, options.steps))
        assert min(pulled_at) < max(begun, 1)
        for number in sorted(pulled_at)[::5]:
            for shown, known, *pushed in pushes(finished.results, number):
                errors = []
                for version in (pulled_at[number], pulled_at[number] + 1):  # the second: a control
                    values = [history[version][name] for name in trained]
                    expected = [gradient + DECAY * value * (value.ndim > 1) for gradient, value
                                in zip(gradients(shown, known, *values), values)]  # fmt: skip
                    differences = [a - b for a, b in zip(pushed, expected)]
                    errors.append(length(differences) / length(expected))
                # Rounding in the parameters can move an input across a ReLU's edge.
                assert errors[0] < 0.02 < errors[1], errors


def cross_entropy(output, labels) -> float:
    output = output - output.max(axis=1, keepdims=True)
    logs = output - np.log(np.exp(output).sum(axis=1, keepdims=True))
    return -logs[np.arange(len(labels)), labels].mean()


def steps_shown(finished, k: int) -> list[int]:
    """The steps in the lines that a worker prints about its speed."""
    steps = re.findall(rf"^\[worker {k}\] step (\d+) .*examples/sec", finished.output, re.M)
    return [int(step) for step in steps]


def keeps_the_contract(finished) -> None:
    line = r"^\[worker [01]\] step \d+  loss [\d.e-]+  [\d.]+ examples/sec  [\d.]+ sec/batch  "
    line += r"waiting for data [\d.]+%$"
    assert re.search(line, finished.output, re.M)
    for k in range(finished.summary["workers"]):
        if len(finished.events(k)) < 15:  # an asynchronous worker that came late
            continue
        assert f"[worker {k}] overall" in finished.output
        assert steps_shown(finished, k)[-1] == finished.events(k)[-1]["global_step"]
    tags = set()
    for path in finished.results.glob("*/events*"):
        for event in tf.train.summary_iterator(str(path)):
            tags |= {value.tag for value in event.summary.value}
    assert any(tag.startswith("distorted") for tag in tags) and "schedule/learning_rate" in tags


@pytest.mark.slow("a run that learns")
def test_it_learns_the_synthetic_pictures(run):
    finished = run("CIFAR-10", "--data", "synthetic", "--steps", 120, "--batch_size", 16,
                   "--learning_rate", 0.02, "--decay_steps", 100, "--workers", 1)  # fmt: skip
    assert finished.summary["test_accuracy"] > 0.9


@pytest.mark.slow("waits until killed tasks are back")
def test_killed_ps_comes_back(start, tmp_path, monkeypatch):
    """The new session finds what the checkpoint's updates had made of parameters, averages and
    moving statistics, and continues from there. Otherwise the run is like an undisturbed one."""
    monkeypatch.setattr(xception, "MIDDLE", 1)  # as in the copy
    delay, steps = seconds(0.1), 60  # long enough for a checkpoint, also on a slow disk
    flags = ["--delay", f"0:{delay}", "--scheme", "synchronous", "--steps", steps]
    flags += ["--decay_steps", 40]
    process, where = start("CIFAR-10", *RECORDED, *flags, root=recorded(tmp_path / "mine"))

    wait_for_checkpoint(where, 10)
    kill_and_see_it_back(where, "ps", 0)
    output, _ = process.communicate(timeout=seconds(120))
    assert process.returncode == 0, output
    finished = Finished(process.returncode, output, where)
    assert finished.summary["global_step"] == steps
    assert [task["restarts"] for task in finished.summary["tasks"]] == [1, 0, 0]
    assert finished.summary["examples"] == 8 * sum(len(finished.events(k)) for k in (0, 1))
    names, history = matches_its_formula(finished)

    first, again = sorted(where.glob("begin-*-0.npz"), key=number_of)
    assert number_of(first) == 0 and 10 <= number_of(again) < steps
    compare(arrays(again), history[number_of(again)])
    # Neither initial values nor averages that begin with the newest parameters would do.
    before, after = ([[state[name] for name in part] for part in names]
                     for state in (history[0], history[number_of(again)]))  # fmt: skip
    assert all(apart(*parts) > 0.01 for parts in zip(before, after, strict=True))
    assert apart(after[0], after[1]) > 3e-4


def by_hand(folder, job, index, tmp_path, *more, **env):
    """Starts a task as the classic trainers do, from inside the folder."""
    command = [sys.executable, "main.py", f"--job_name={job}", f"--task_index={index}", *more,
               "--results", str(tmp_path / f"{job}-{index}"),
               "--timeout", str(seconds(60))]  # fmt: skip
    env = environment(PYTHONPATH=str(folder.parent), **env)
    return subprocess.Popen(command, cwd=folder, text=True, env=env,
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT)  # fmt: skip


TASKS = [("ps", 0), ("worker", 0), ("worker", 1)]


@pytest.mark.usefixtures("default_ports")
@pytest.mark.slow("tasks started by hand")
def test_the_three_classic_commands(tmp_path):
    """The chief downloads CIFAR-10 (here a small one); the other worker waits; both train. The
    asynchronous scheme by hand: `test_by_hand.py`, and the test below."""
    x = RNG.integers(0, 256, (240, 32, 32, 3), np.uint8)
    labels = np.arange(240) % 10
    names = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    archive = tar({f"cifar-10-batches-bin/{name}": cifar_batch(x[i::6], labels[i::6])
                   for i, name in enumerate(names)})  # fmt: skip
    root = copy_example("CIFAR-10", tmp_path / "mine")
    code = root / "common" / "datasets" / "download.py"
    ((published, size),) = download.SOURCES["cifar10"][1].values()
    own = f'"{hashlib.md5(archive).hexdigest()}", {len(archive)}'
    code.write_text(code.read_text().replace(f'"{published}", {size:_}', own))
    server = Server()
    server.bodies["/cifar-10-binary.tar.gz"] = archive
    try:
        env = {"DATA_DIR": str(tmp_path / "cache"), "no_proxy": "127.0.0.1"}
        more = ["--data_url", server.url, "--steps", "20", "--batch_size", "4"]
        more += ["--scheme", "synchronous"]
        tasks = [by_hand(root / "CIFAR-10", job, i, tmp_path, *more, **env) for job, i in TASKS]
        outputs = [task.communicate(timeout=seconds(90))[0] for task in tasks]
    finally:
        server.close()
    assert [task.returncode for task in tasks] == [0, 0, 0], "\n".join(outputs)
    assert server.asked == ["/cifar-10-binary.tar.gz"]
    assert "downloading" in outputs[1] and "downloading" not in outputs[2]
    assert "test accuracy" in outputs[1] and "examples/sec" in outputs[2]
    assert (tmp_path / "worker-0" / "parameters.npz").is_file()


@pytest.mark.parametrize(
    ("given", "script"),
    [
        (["--job_name=ps", "--scheme=synchronous"], "ps.py"),
        (["--job_name=worker"], "worker.py"),
        (["--job_name", "worker", "--scheme", "asynchronous", "--steps", "20"], "worker.py"),
        (["--job_name=worker", "--scheme=synchronous"], "synchronous.py"),
    ],
)
def test_main_chooses_the_script(monkeypatch, given, script):
    main, ran = runpy.run_path, []
    monkeypatch.syspath_prepend(FOLDER)  # main.py changes Python's path
    monkeypatch.setattr(sys, "argv", ["main.py", *given])
    monkeypatch.setattr(runpy, "run_path", lambda *path, **more: ran.append((*path, more)))
    main(str(FOLDER / "main.py"), run_name="__main__")
    assert ran == [(str(FOLDER / script), {"run_name": "__main__"})]
    assert sys.argv == ["main.py", *given]


def test_main_passes_mistakes_on(monkeypatch, capsys):
    """To the script that reports them. main.py finds common/, whatever is on Python's path."""
    env = environment()
    env.pop("PYTHONPATH", None)
    done = subprocess.run(
        [sys.executable, "main.py", "--job_name=worker", "--task_index=7"], cwd=FOLDER, env=env,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2
    assert "there is no worker 7" in done.stderr.strip().splitlines()[-1]
    monkeypatch.syspath_prepend(FOLDER)  # in this process, as `python main.py` would do
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "1")  # worker.py sets it
    for given, words in (
        (["--job_name=master"], ("--job_name", "master")),
        (["--job_name=worker", "--scheme=none"], ("--scheme", "'none'")),
    ):
        monkeypatch.setattr(sys, "argv", ["main.py", *given])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(FOLDER / "main.py"), run_name="__main__")
        assert ended.value.code == 2
        last = capsys.readouterr().err.strip().splitlines()[-1]
        assert all(word in last for word in words)
