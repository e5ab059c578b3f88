"""What the loop's `sess.run` does, in copies of the examples, and which updates it refuses."""

import argparse
import ast
import contextlib
import json
import re
import subprocess
import sys
from unittest import mock

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from conftest import ROOT, copy_example, environment

from common import session
from common.launch import network
from common.training import checks

tf.disable_eager_execution()

LOOP = "        sess.run(step)"
SESSION = "# 6. The monitored session"

# Calls `sess.run` and records each call's value, or how it was refused, and the number of updates
# before and after it. Reading `global_step` makes no step. That is tested too, since at the end
# the test accounts for every step.
PROBE = """        import json
        import numpy as np

        def plain(value):
            return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else str(value)

        for name, fetches, *feed in CALLS:
            before = sess.run(global_step)
            try:
                value = sess.run(fetches, *feed)
            except ValueError as error:
                value = f"ValueError: {error}"
            after = sess.run(global_step)
            with open(f"{flags.results}/probe", "a") as probe:
                print(json.dumps([name, value, before, after], default=plain), file=probe)
        CALLS = []
        sess.run(step)"""


def changed(name: str, to, *changes: tuple[str, str]):
    """A copy of an example with some text of its worker.py replaced."""
    source = (ROOT / name / "worker.py").read_text()
    for old, new in changes:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    return copy_example(name, to, worker=source)


def probed(name: str, to, tensors: str, calls: str):
    """A copy of an example that makes `calls`, a list of (name, fetches, feed), before its loop."""
    tensors += f"\nCALLS = {calls}\n\n{SESSION}"
    return changed(name, to, (SESSION, tensors), (LOOP, PROBE))


def found(finished) -> dict[str, tuple]:
    """name -> value, updates before and after the call."""
    lines = (finished.results / "probe").read_text().splitlines()
    return {name: tuple(rest) for name, *rest in map(json.loads, lines)}


TENSORS = """
with tf.control_dependencies([step]):
    after = 2 * loss
tenfold = 10 * loss
sparse = tf.SparseTensor([[1]], [tf.cast(loss, tf.float32)], [3])
"""
CALLS = """[
    ("step", step),
    ("name", step.name),
    ("pair", [step, loss]),
    ("dict", {"made": step, "all": ([loss], (loss, pulled_at)), "number": number}),
    ("alone", loss),
    ("count", global_step),
    ("reads", {"loss": loss, "w": [w[-1], params[-1]], "at": pulled_at}),
    ("sparse", sparse),
    ("nothing", []),
    ("number", number),
    ("number of several", [loss, {"number": number}]),
    ("after", after),
    ("sparse step", [step, sparse, tenfold]),
]"""
READS = ("alone", "count", "reads", "sparse", "nothing", "number", "number of several")


def test_run_behaves_like_tensorflows(run, tmp_path):
    """A step only if the call asks for one, and the same values as TensorFlow."""
    root = probed("HogWild", tmp_path, TENSORS, CALLS)
    finished = run("HogWild", "--workers", 1, "--steps", 30, root=root)
    seen, events = found(finished), finished.events()
    assert [event["global_step"] for event in events] == list(range(1, 31))
    assert list(seen) == [call.elts[0].value for call in ast.parse(CALLS).body[0].value.elts]
    for name, (_, before, after) in seen.items():
        assert after - before == (name not in READS), name

    def event(name):
        """The event of the step that a call made."""
        return events[seen[name][2] - 1]

    assert seen["step"][0] is None and seen["name"][0] is None
    assert seen["pair"][0] == [None, pytest.approx(event("pair")["loss"], rel=1e-6)]
    nested, made = seen["dict"][0], event("dict")
    assert nested["made"] is None and nested["number"] == made["global_step"] - 1
    (one,), (two, pulled_at) = nested["all"]
    assert one == two == pytest.approx(made["loss"], rel=1e-6)
    assert pulled_at == made["pulled_at"]
    assert type(seen["alone"][0]) is float and seen["alone"][0] > 0
    assert seen["count"][0] == seen["count"][1]
    reads = seen["reads"][0]
    np.testing.assert_array_equal(*reads["w"])  # no update in between
    assert reads["at"] == seen["reads"][1]
    assert seen["nothing"][0] == []
    for name in ("number", "number of several"):
        text = seen[name][0]
        assert text.startswith("ValueError: sess.run(") and "\n" not in text
        assert "takes the number of an update" in text and "sess.run([step, ...])" in text
    assert seen["after"][0] == pytest.approx(2 * event("after")["loss"], rel=1e-6)
    assert seen["sparse step"][0][2] == pytest.approx(10 * event("sparse step")["loss"], rel=1e-6)


def test_several_steps_in_a_call(run, tmp_path):
    """Four steps, recorded as four; fetched values are the last step's."""
    root = probed("HogWild", tmp_path, TENSORS, CALLS)
    flags = ["--workers", 1, "--steps", 42, "--steps_per_execution", 4]
    finished = run("HogWild", *flags, root=root)
    seen, events = found(finished), finished.events()
    assert [event["global_step"] for event in events] == list(range(1, 43))
    assert [event["local_step"] for event in events] == list(range(1, 43))
    assert [event["pulled_at"] for event in events] == list(range(42))  # one worker: no staleness
    for name, (_, before, after) in seen.items():
        assert after - before == 4 * (name not in READS), name
    last = {name: events[after - 1]["loss"] for name, (_, _, after) in seen.items()}
    assert seen["step"][0] is None
    assert seen["pair"][0] == [None, pytest.approx(last["pair"], rel=1e-6)]
    assert seen["dict"][0]["number"] == seen["dict"][2] - 1
    assert seen["dict"][0]["all"][1][1] == seen["dict"][2] - 1  # pulled_at
    assert seen["after"][0] == pytest.approx(2 * last["after"], rel=1e-6)
    assert seen["sparse step"][0][2] == pytest.approx(10 * last["sparse step"], rel=1e-6)
    assert seen["number"][0].startswith("ValueError: ")


def test_a_token_is_not_taken_without_a_step(run, tmp_path):
    """In a synchronous scheme the loss is that of the token's parameters."""
    calls = """[("loss", loss), ("pair", [step, loss]), ("w", w), ("params", params[-1])]"""
    root = probed("Synchronous-SGD", tmp_path, "", calls)
    flags = ["--workers", 1, "--steps", 30, "--learning_rate", 0.2]
    finished = run("Synchronous-SGD", *flags, root=root)
    seen, events = found(finished), finished.events()
    assert [event["global_step"] for event in events] == list(range(1, 31))
    for name in ("loss", "w"):
        text, before, after = seen[name]
        assert text.startswith("ValueError: sess.run(") and "sess.run([step, ...])" in text
        assert before <= after <= before + 1  # the chief's thread may be in the middle of an update
    made, loss = seen["pair"][0]
    assert made is None
    assert loss in [pytest.approx(event["loss"], rel=1e-6) for event in events[:3]]


SERVER = "server = tf.train.Server(task.cluster, task.job, task.index, config=task.config)\n"
UPDATE = """with session.next_update(global_step, flags, after=arrived) as number:
    step = optimizer.apply_gradients(zip(arrived, params))"""
REFUSED = {
    "outside": (
        """with session.next_update(global_step, flags, after=arrived) as number:
    pass
step = optimizer.apply_gradients(zip(arrived, params))
step = tf.group(step, number.op)""",
        ("changes", "without waiting for the number", "inside `with session.next_update("),
    ),
    "one of several outside": (
        """with session.next_update(global_step, flags, after=arrived) as number:
    step = optimizer.apply_gradients(zip(arrived[1:], params[1:]))
step = tf.group(step, params[0].assign_sub(arrived[0]))""",
        ("changes weights_0 without waiting for the number",),
    ),
    "computed on the worker": (
        """with session.next_update(global_step, flags, after=arrived) as number:
    with tf.device(task.device):
        arrived = [g / 2 for g in arrived]
    step = optimizer.apply_gradients(zip(arrived, params))""",
        ("is part of the update of", "not computed on the ps", "tf.device("),
    ),
    "computed nowhere in particular": (
        """with session.next_update(global_step, flags, after=arrived) as number:
    pass
with tf.control_dependencies([number]):
    step = tf.group(*[p.assign_sub(0.2 * g) for p, g in zip(params, arrived)])""",
        ("is part of the update of", "not computed on the ps", "tf.device("),
    ),
}


def test_an_update_that_is_not_counted_on_the_ps_is_refused(tmp_path):
    """Before the worker needs a ps, so here there is none."""
    update, words = REFUSED["outside"]
    script = changed("HogWild", tmp_path, (UPDATE, update)) / "HogWild" / "worker.py"
    ps, *workers = (f"localhost:{port}" for port in network.free_ports(3, private=False))
    hosts = ["--ps_hosts", ps, "--worker_hosts", ",".join(workers)]
    done = subprocess.run(
        [sys.executable, script, *hosts, "--steps", "5", "--results", tmp_path / "results"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment(),
    )  # fmt: skip
    assert done.returncode == 1
    (error,) = re.findall(r"^ValueError: .*$", done.stdout, re.M)
    for word in words:
        assert word in error
    assert not (tmp_path / "results" / "parameters.npz").exists()


@mock.patch.dict("os.environ")  # undoes the script's changes
@pytest.mark.parametrize("how", [None, *REFUSED])
def test_the_check_refuses_what_is_not_counted_on_the_ps(monkeypatch, how):
    """In the graph that the script builds, which as it stands passes. A session makes the check."""
    source = (ROOT / "HogWild" / "worker.py").read_text().partition(SESSION)[0]
    assert source.count(UPDATE) == source.count(SERVER) == 1
    source = source.replace(SERVER, "")
    monkeypatch.setenv("TASK_RESTARTS", "0")  # as from the launcher: the task writes no part
    monkeypatch.setattr("common.told.by_hand.check_free", lambda address: None)
    monkeypatch.setattr(sys, "argv", [str(ROOT / "HogWild" / "worker.py")])
    update, words = REFUSED[how] if how else (UPDATE, ())
    with (
        tf.Graph().as_default(),
        contextlib.nullcontext() if not how else pytest.raises(ValueError) as refused,
    ):
        built = {}
        exec(source.replace(UPDATE, update), built)
        checks.check_updates(tf.trainable_variables(), built["step"], built["number"])
    for word in words:
        assert word in str(refused.value)


def updated(write: bool, wrap) -> None:
    """Checks an update whose gradient `wrap` computes from the variables themselves."""
    with tf.Graph().as_default():
        param = tf.Variable([1.0, 2.0], name="weights", use_resource=True)
        global_step = tf.train.get_or_create_global_step()

        def gradient():
            if write:
                with tf.control_dependencies([param.assign([0.0, 0.0], read_value=False)]):
                    return param.read_value()
            return 2 * param.read_value()

        grad = wrap(gradient)
        flags = argparse.Namespace(steps=10)
        with session.next_update(global_step, flags, after=[grad]) as number:
            step = tf.train.GradientDescentOptimizer(0.1).apply_gradients([(grad, param)])
        checks.check_updates([param], step, number)


WRAPS = {
    "plain": lambda f: f(),
    "loop": lambda f: tf.while_loop(
        lambda t, _: t < 3, lambda t, _: (t + 1, f()), [0, tf.zeros([2])]
    )[1],
    "branch": lambda f: tf.cond(tf.random.uniform([]) < 2, f, lambda: tf.zeros([2])),
    "case": lambda f: tf.switch_case(tf.constant(1), [lambda: tf.zeros([2]), f]),
    "function": lambda f: tf.function(f)(),
    "function in a loop": lambda f: WRAPS["loop"](tf.function(f)),
}


@pytest.mark.parametrize("how", WRAPS)
def test_reading_a_parameter_in_a_function_of_the_graph_is_not_an_update(how):
    updated(False, WRAPS[how])


@pytest.mark.parametrize("how", WRAPS)
def test_writing_a_parameter_there_is_an_update(how):
    with pytest.raises(ValueError, match=r"changes weights without waiting for the number"):
        updated(True, WRAPS[how])
