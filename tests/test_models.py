"""The networks against NumPy, and their transfers between worker and parameter servers."""

import argparse
import itertools
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from conftest import ROOT, environment
from machine import seconds

from common import copies, models
from common.flags import parser
from common.graph import walk
from common.launch import network

tf.disable_eager_execution()
DEFAULTS = {"workers": 2, "ps": 1, "steps": 10, "learning_rate": 0.1}
CONVOLUTIONS = [[3, 3, 1, 16], [16], [3, 3, 16, 32], [32]]


def flags(*given) -> argparse.Namespace:
    return parser(DEFAULTS).parse_args([str(value) for value in given])


@pytest.fixture
def dataset(tmp_path):
    """`dataset(6, 6, classes=4)` -> the path of an .npz with examples of that shape."""

    def _dataset(*shape, classes=3):
        x = np.random.default_rng(0).random((12, *shape), np.float32)
        labels = np.arange(12) % classes
        path = tmp_path / f"{'x'.join(map(str, shape))}.npz"
        np.savez(path, x_train=x, y_train=labels, x_test=x, y_test=labels)
        return path

    return _dataset


def initial(options) -> list[np.ndarray]:
    with tf.Graph().as_default(), tf.Session() as session:
        params = models.create(options)
        session.run(tf.global_variables_initializer())
        return session.run(params)


def evaluate(make, *given):
    """Runs `make(*tensors)` on the given arrays in a new graph."""
    with tf.Graph().as_default(), tf.Session() as session:
        return session.run(make(*(tf.constant(value) for value in given)))


# Independent NumPy


def forward(params, x):
    """Softmax regression, or a hidden layer of rectified linear units: scores [batch, classes]."""
    x = x.reshape(len(x), -1)
    if len(params) == 4:
        x = np.maximum(x @ params[0] + params[1], 0)
    return x @ params[-2] + params[-1]


def cross_entropy(scores, labels) -> float:
    """Mean over the batch of -log of the softmax probability of the correct class."""
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    return -np.log(p[np.arange(len(labels)), labels]).mean()


def convolved(x, filters):
    """[batch, height, width, in] with [3, 3, in, out], zeros around the edge, in plain loops."""
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    height, width = x.shape[1:3]
    out = np.zeros((*x.shape[:3], filters.shape[3]))
    for i in range(3):
        for j in range(3):
            out += padded[:, i : i + height, j : j + width] @ filters[i, j]
    return out


def pooled(x):
    """The largest of each 2x2 block; an odd edge's blocks are smaller."""
    height, width = x.shape[1:3]
    rows = [
        [x[:, i : i + 2, j : j + 2].max(axis=(1, 2)) for j in range(0, width, 2)]
        for i in range(0, height, 2)
    ]
    return np.stack([np.stack(row, axis=1) for row in rows], axis=1)


def forward_cnn(params, x):
    for filters, biases in (params[0:2], params[2:4]):
        x = pooled(np.maximum(convolved(x, filters) + biases, 0))
    return x.reshape(len(x), -1) @ params[4] + params[5]


# Shapes and initial values


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("--model linear", [[64, 10], [10]]),
        ("--model mlp", [[64, 128], [128], [128, 10], [10]]),
        ("--model mlp --hidden 7", [[64, 7], [7], [7, 10], [10]]),
        ("--model cnn", [*CONVOLUTIONS, [2 * 2 * 32, 10], [10]]),
        ("--model linear --data mnist", [[784, 10], [10]]),
        ("--model cnn --data mnist", [*CONVOLUTIONS, [7 * 7 * 32, 10], [10]]),
        ("--model cnn --data synthetic", [*CONVOLUTIONS, [7 * 7 * 32, 10], [10]]),
        (
            "--model cnn --data cifar10",
            [[3, 3, 3, 16], [16], [3, 3, 16, 32], [32], [8 * 8 * 32, 10], [10]],
        ),
    ],
)
def test_shapes_in_model_order(given, expected):
    options = flags(*given.split())
    assert models.shapes(options) == expected
    with tf.Graph().as_default():
        params = models.create(options)
        assert [param.shape.as_list() for param in params] == expected
        assert tf.trainable_variables() == tf.global_variables() == params


def test_shapes_follow_the_npz(dataset):
    path = dataset(5, 7, 2, classes=4)
    assert models.shapes(flags("--model", "linear", "--data", path)) == [[70, 4], [4]]
    assert models.shapes(flags("--model", "cnn", "--data", path)) == [
        [3, 3, 2, 16], [16], [3, 3, 16, 32], [32], [2 * 2 * 32, 4], [4],
    ]  # fmt: skip


def test_linear_starts_at_zero():
    assert all((value == 0).all() for value in initial(flags("--model", "linear", "--seed", 5)))


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_initial_values_are_he_normal_and_depend_on_the_seed(model):
    values = initial(flags("--model", model))
    for weights, biases in zip(values[::2], values[1::2], strict=True):
        assert (biases == 0).all()
        inputs = weights.size // weights.shape[-1]  # He et al.: variance 2 / inputs
        assert abs(weights.mean()) < 5 * np.sqrt(2 / inputs / weights.size)
        assert weights.std() == pytest.approx(np.sqrt(2 / inputs), rel=4 / np.sqrt(weights.size))
    same, other = initial(flags("--model", model)), initial(flags("--model", model, "--seed", 1))
    for first, second, third in zip(values[::2], same[::2], other[::2], strict=True):
        np.testing.assert_array_equal(first, second)
        assert (first != third).mean() > 0.99


def test_initial_values_do_not_depend_on_the_scheme():
    """With other operations, seeds and devices, the values are the same."""
    alone = initial(flags())
    with tf.Graph().as_default():
        tf.set_random_seed(99)
        tf.random.normal([3])
        tf.train.get_or_create_global_step()
        device = tf.train.replica_device_setter(ps_device="/cpu:0", worker_device="/cpu:0")
        with tf.device(device), tf.name_scope("elsewhere"):
            params = models.create(flags("--steps", 7, "--learning_rate", 3))
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            for value, expected in zip(session.run(params), alone, strict=True):
                np.testing.assert_array_equal(value, expected)


# Loss and gradients


def problem(model: str, features: int = 6, classes: int = 4):
    """Random parameters of both signs, and a batch of 9."""
    rng = np.random.default_rng(7)
    sizes = {"linear": [features, classes], "mlp": [features, 5, classes]}[model]
    params = []
    for a, b in itertools.pairwise(sizes):
        params += [rng.normal(size=(a, b)), rng.normal(size=b)]
    return params, rng.random((9, features)), rng.integers(0, classes, 9)


@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_loss_is_the_mean_softmax_cross_entropy(model):
    params, x, labels = problem(model)
    measured = evaluate(
        lambda x, y, *w: models.gradients(flags("--model", model), list(w), (x, y))[0],
        x,
        labels,
        *params,
    )
    assert measured == pytest.approx(cross_entropy(forward(params, x), labels), rel=1e-12)
    scores = evaluate(lambda x, *w: models.logits(model, list(w), x), x, *params)
    np.testing.assert_allclose(scores, forward(params, x), rtol=1e-12)


def test_loss_at_zero_is_the_logarithm_of_the_classes():
    zeros = [np.zeros((6, 4)), np.zeros(4)]
    _, x, labels = problem("linear")
    measured = evaluate(
        lambda x, y, *w: models.gradients(flags("--model", "linear"), list(w), (x, y))[0],
        x,
        labels,
        *zeros,
    )
    assert measured == pytest.approx(np.log(4))


@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_gradients_against_finite_differences(model):
    params, x, labels = problem(model)
    value, grads = evaluate(
        lambda x, y, *w: models.gradients(flags("--model", model), list(w), (x, y)),
        x,
        labels,
        *params,
    )
    assert value == pytest.approx(cross_entropy(forward(params, x), labels), rel=1e-12)
    assert [grad.shape for grad in grads] == [param.shape for param in params]
    for k, (param, grad) in enumerate(zip(params, grads, strict=True)):
        for at in np.ndindex(param.shape):
            losses = []
            for move in (1e-5, -1e-5):
                moved = [p.copy() for p in params]
                moved[k][at] += move
                losses.append(cross_entropy(forward(moved, x), labels))
            assert grad[at] == pytest.approx((losses[0] - losses[1]) / 2e-5, rel=1e-6, abs=1e-9)


def test_gradients_in_a_loop_are_taken_at_its_current_values():
    """T local steps: each gradient uses the parameters after the previous step."""
    params, x, labels = problem("linear")

    def steps(x, labels, *w):
        def step(t, *w):
            _, grads = models.gradients(flags("--model", "linear"), list(w), (x, labels))
            return t + 1, *(a - 0.5 * g for a, g in zip(w, grads, strict=True))

        return tf.while_loop(lambda t, *w: t < 5, step, [0, *w])[1:]

    measured = evaluate(steps, x, labels, *params)
    w, b = params
    for _ in range(5):
        scores = x @ w + b
        p = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        p[np.arange(9), labels] -= 1
        w, b = w - 0.5 * x.T @ p / 9, b - 0.5 * p.mean(axis=0)
    np.testing.assert_allclose(measured[0], w, rtol=1e-9)
    np.testing.assert_allclose(measured[1], b, rtol=1e-9)


@pytest.mark.parametrize("shape", [(6, 6), (5, 7), (6, 6, 3), (36,)])
def test_cnn_is_two_convolutions_with_pooling_and_a_dense_layer(dataset, shape):
    options = flags("--model", "cnn", "--data", dataset(*shape))
    rng = np.random.default_rng(3)
    params = [rng.normal(size=shape) for shape in models.shapes(options)]
    x = rng.random((4, *shape))
    image = x.reshape(4, *{1: (6, 6, 1), 2: (*shape, 1), 3: shape}[len(shape)])
    measured = evaluate(lambda x, *w: models.logits("cnn", list(w), x), x, *params)
    np.testing.assert_allclose(measured, forward_cnn(params, image), rtol=1e-9)
    grads = evaluate(
        lambda x, *w: models.gradients(options, list(w), (x, tf.zeros(4, tf.int64)))[1], x, *params
    )
    assert [grad.shape for grad in grads] == [param.shape for param in params]
    assert all(np.abs(grad).max() > 0 for grad in grads)


def test_cnn_runs_on_digits():
    options = flags("--model", "cnn")
    x = np.random.default_rng(0).random((3, 8, 8), np.float32)
    with tf.Graph().as_default(), tf.Session() as session:
        scores = models.logits("cnn", models.create(options), tf.constant(x))
        session.run(tf.global_variables_initializer())
        measured = session.run(scores)
    assert measured.shape == (3, 10)
    np.testing.assert_allclose(measured, forward_cnn(initial(options), x[..., None]), rtol=1e-4)


def test_cnn_refuses_what_is_not_an_image(dataset, capsys):
    options = flags("--model", "cnn", "--data", dataset(35))
    with pytest.raises(SystemExit) as ended:
        models.shapes(options)
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("error: --model cnn needs images")
    assert "[35]" in error
    assert error.count("\n") == 1


# Pull and push. A server cannot be stopped, so the cluster runs in a separate process, which must
# choose its network before it imports TensorFlow.

CLUSTER = """
import json
from common.launch import network
from common.graph import walk
private = network.choose("auto", lambda text: None) == "private"
import test_models
print(json.dumps(test_models.cluster_of_two_ps(private)))
"""


def cluster_of_two_ps(private: bool) -> dict:
    """Pulls and pushes parameters on a real cluster; returns what it saw."""
    hosts = [f"localhost:{port}" for port in network.free_ports(3, private)]
    spec = tf.train.ClusterSpec({"ps": hosts[:2], "worker": hosts[2:]})
    servers = [tf.train.Server(spec, job, k) for job, k in (("ps", 0), ("ps", 1), ("worker", 0))]
    with tf.device(tf.train.replica_device_setter(cluster=spec)):
        params = models.create(flags("--hidden", 3))
        global_step = tf.train.get_or_create_global_step()  # on the first ps, like params[0]
    with tf.device("/job:worker/task:0"):
        pull = copies.pull(params, global_step)
        pulled, pulled_at = pull.w, pull.count
        pushed = copies.send([w + 1 for w in pulled], params).values
        with tf.device(params[2].device):  # the first ps
            news = params[2].assign_add(tf.ones(params[2].shape))
            counted = global_step.assign_add(1)
            with tf.control_dependencies([counted]):
                news = tf.identity(news)
        again = copies.pull(params, global_step, after=news)
        renewed, renewed_at = again.w, again.count
    there = pull.on_ps
    assigned = [param.assign(value) for param, value in zip(params, pushed, strict=True)]
    back = [param.assign(value) for param, value in zip(params, there, strict=True)]

    def devices(tensors) -> list[str]:
        return [tensor.device for tensor in tensors]

    seen = {
        "param devices": devices(params),
        "pulled devices": devices(pulled),
        "pushed devices": devices(pushed),
        "still devices": devices(there),
        "count devices": devices([pulled_at, renewed_at, global_step]),
        "pulled shapes": [w.shape.as_list() for w in pulled],
        "pushed shapes": [value.shape.as_list() for value in pushed],
    }
    with tf.Session(servers[2].target) as session:

        def values(tensors) -> list:
            return [value.tolist() for value in session.run(tensors)]

        def transfers(tensors) -> list[list[str]]:
            """[from, to] of every tensor sent between tasks."""
            ends, metadata = ("send_device", "recv_device"), tf.RunMetadata()
            options = tf.RunOptions(output_partition_graphs=True)
            session.run([tensor.op for tensor in tensors], options=options, run_metadata=metadata)
            pairs = [
                [node.attr[end].s.decode().partition("/device")[0] for end in ends]
                for graph in metadata.partition_graphs
                for node in graph.node
                if "Recv" in node.op
            ]
            return sorted(pair for pair in pairs if pair[0] != pair[1])

        session.run(tf.global_variables_initializer())
        seen["before"], seen["pulled"], seen["pushed"] = map(values, (params, pulled, pushed))
        seen["still"] = values(there)
        seen["pull"], seen["pull and push"] = transfers(pulled), transfers(assigned)
        seen["still on ps"] = transfers(back)
        seen["after"] = values(params)
        seen["renewed"] = [values([*renewed, renewed_at]) for _ in range(20)]
        seen["pull after"] = transfers(renewed)
    return seen


@pytest.fixture(scope="module")
def seen() -> dict:
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests"), str(ROOT / "measure")])
    ended = subprocess.run(
        [sys.executable, "-c", CLUSTER],
        capture_output=True,
        text=True,
        timeout=seconds(120),
        env=environment(PYTHONPATH=path),
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


SHAPES = [[64, 3], [3], [3, 10], [10]]
WORKER, *PS = (f"/job:{task}" for task in ("worker/task:0", "ps/task:0", "ps/task:1"))


def test_the_parameters_are_spread_over_the_parameter_servers(seen):
    assert seen["param devices"] == PS * 2


def test_pull_copies_the_values_in_order(seen):
    assert seen["pulled devices"] == [WORKER] * 4
    assert seen["pulled shapes"] == SHAPES
    for pulled, before, start in zip(
        seen["pulled"], seen["before"], initial(flags("--hidden", 3)), strict=True
    ):
        np.testing.assert_array_equal(np.float32(before), start)
        np.testing.assert_array_equal(pulled, before)


def test_a_pull_waits_for_what_comes_before_it_on_the_same_ps(seen):
    for i, (*renewed, renewed_at) in enumerate(seen["renewed"], 1):
        assert renewed_at == i
        expected = [np.float32(after) + i * (k == 2) for k, after in enumerate(seen["after"])]
        for value, right in zip(renewed, expected, strict=True):
            np.testing.assert_allclose(value, right, rtol=1e-6)


def test_push_puts_each_value_next_to_its_parameter(seen):
    assert seen["pushed devices"] == seen["param devices"]
    assert seen["pushed shapes"] == SHAPES
    for pushed, before in zip(seen["pushed"], seen["before"], strict=True):
        np.testing.assert_array_equal(np.float32(pushed), np.float32(before) + 1)
    for after, before in zip(seen["after"], seen["before"], strict=True):
        np.testing.assert_array_equal(np.float32(after), np.float32(before) + 1)


def test_a_pull_and_a_push_are_one_transfer_for_each_parameter_server(seen):
    ps = [task.replace("/task", "/replica:0/task") for task in PS]
    worker = WORKER.replace("/task", "/replica:0/task")
    down, up = [[name, worker] for name in ps], [[worker, name] for name in ps]
    assert seen["pull"] == sorted(down)
    assert seen["pull after"] == sorted([*down, ps])  # the second ps waits for the first
    assert seen["pull and push"] == sorted(down + up)


def test_the_count_stays_where_it_is(seen):
    assert seen["count devices"] == [PS[0]] * 3


def test_what_is_still_on_the_ps_is_not_sent_back(seen):
    assert seen["still devices"] == seen["param devices"]
    assert seen["still"] == seen["before"]
    assert seen["still on ps"] == []


def test_the_count_is_read_before_the_parameters():
    """So an update in between may be in w but not in the count, never vice versa."""
    with tf.Graph().as_default(), tf.device("/job:ps/task:0"):
        params = models.create(flags("--hidden", 3))
        global_step = tf.train.get_or_create_global_step()
        with tf.device("/job:worker/task:0"):
            pull = copies.pull(params, global_step)
            w, pulled_at = pull.w, pull.count
        handles = {param.handle.op for param in params}
        needed = walk.needed([value.op for value in w])
        reads = [op for op in needed if any(t.op in handles for t in op.inputs)]
        assert len(reads) == len(params)
        assert all(pulled_at.op in walk.needed([read]) for read in reads)
        assert not handles & walk.needed([pulled_at.op])


def test_local_copies_belong_to_the_worker():
    with tf.Graph().as_default():
        with tf.device("/job:ps/task:0"):
            params = models.create(flags("--hidden", 3))
            with pytest.raises(ValueError, match=r"copies\.local makes local .*task\.device"):
                copies.local(params)
        with tf.device("/job:worker/task:1"):
            own = copies.local(params, 0.5)
        assert [variable.device for variable in own] == ["/job:worker/task:1"] * 4
        assert [variable.shape for variable in own] == [param.shape for param in params]
        assert not set(map(id, own)) & set(
            map(id, tf.global_variables() + tf.trainable_variables())
        )
        assert set(map(id, own)) <= set(map(id, tf.local_variables()))
    with tf.Graph().as_default(), tf.Session() as session:
        own = copies.local(models.create(flags("--hidden", 3)), 0.5)
        session.run(tf.local_variables_initializer())
        assert all((value == 0.5).all() for value in session.run(own))
