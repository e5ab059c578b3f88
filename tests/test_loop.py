"""What the loop's `sess.run` does, in copies of the examples, and which updates it refuses."""

import argparse
import ast
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
from common.training import checks, evaluation

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
    ("dict", {"made": step, "all": ([loss], (loss, pull.count)), "number": update.number}),
    ("alone", loss),
    ("count", global_step),
    ("reads", {"loss": loss, "w": [pull.w[-1], params[-1]], "at": pull.count}),
    ("sparse", sparse),
    ("nothing", []),
    ("number", update.number),
    ("number of several", [loss, {"number": update.number}]),
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


FED = """
scale = tf.placeholder_with_default(1.0, [])
with tf.control_dependencies([step]):
    fed = tf.identity(scale)
"""


@pytest.mark.parametrize("count", [1, 2])
def test_a_fed_value_belongs_to_one_step(run, tmp_path, count):
    """Several steps in a call cannot be fed: all would get the same values."""
    root = probed("HogWild", tmp_path, FED, '[("fed", fed, {scale: 5.0})]')
    flags = ["--workers", 1, "--steps", 30, "--steps_per_execution", count]
    value, before, after = found(run("HogWild", *flags, root=root))["fed"]
    if count == 1:
        assert (value, after - before) == (5.0, 1)
    else:
        assert value.startswith("ValueError: sess.run(step, feed_dict=...) with")
        assert "--steps_per_execution 2 would feed all steps" in value and after == before


def test_a_token_is_not_taken_without_a_step(run, tmp_path):
    """In a synchronous scheme the loss is that of the token's parameters."""
    calls = """[("loss", loss), ("pair", [step, loss]), ("w", pull.w), ("params", params[-1])]"""
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
PULL = "    pull = copies.pull(params, global_step)  # w <- w~\n"
GRADS = "    loss, grads = models.gradients(flags, pull.w, next_batch())\n"
OPTIMIZER = (
    "    optimizer = tf.train.GradientDescentOptimizer(flags.learning_rate)"
    "  # schedule by update.number\n"
)
APPLY = "    step = optimizer.apply_gradients(zip(push.values, params))\n"
UPDATE = f"with session.next_update(global_step, flags, push) as update:\n{OPTIMIZER}{APPLY}"
ME = "session.Replica(step, loss, pull, push, update)"
VARIABLES = "    params = models.create(flags)  # weights, biases, weights, ...\n"
HERE = "with tf.device(task.device):  # this worker's GPU, or its CPU\n"
NOT_ON_THE_PS = ("which the update of", "is not computed on the ps", "change gradients before")
# What is replaced in HogWild's script, by what, and words of the error.
REFUSED = {
    "an update outside": (
        UPDATE,
        UPDATE.replace(APPLY, "    pass\n")
        + """step = optimizer.apply_gradients(zip(push.values, params))
step = tf.group(step, update.number.op)
""",
        ("changes", "without waiting for the number", "inside `with session.next_update("),
    ),
    "one of several outside": (
        APPLY,
        """    step = optimizer.apply_gradients(zip(push.values[1:], params[1:]))
step = tf.group(step, params[0].assign_sub(push.values[0]))
""",
        ("changes weights_0 without waiting for the number",),
    ),
    "computed on the worker": (
        APPLY,
        """    with tf.device(task.device):
        grads = [g / 2 for g in push.values]
    step = optimizer.apply_gradients(zip(grads, params))
""",
        NOT_ON_THE_PS,
    ),
    "computed nowhere in particular": (
        APPLY,
        """    pass
with tf.control_dependencies([update.number]):
    step = tf.group(*[p.assign_sub(0.2 * g) for p, g in zip(params, push.values)])
""",
        NOT_ON_THE_PS,
    ),
    "clipped after sending": (
        UPDATE,
        f"clipped, _ = tf.clip_by_global_norm(push.values, 1.0)\n{UPDATE}".replace(
            "zip(push.values", "zip(clipped"
        ),
        ("clip_by_global_norm", *NOT_ON_THE_PS),
    ),
    "clipped after sending, and waited for": (
        UPDATE,
        f"clipped, _ = tf.clip_by_global_norm(push.values, 1.0)\n{UPDATE}".replace(
            "zip(push.values", "zip(clipped"
        ).replace("flags, push)", "flags, clipped)"),
        ("clip_by_global_norm", *NOT_ON_THE_PS),
    ),
    "clipped after sending, as if it had arrived": (
        UPDATE,
        f"push = push._replace(values=tf.clip_by_global_norm(push.values, 1.0)[0])\n{UPDATE}",
        ("clip_by_global_norm", *NOT_ON_THE_PS),
    ),
    "another pull": (
        ME,
        ME.replace("loss, pull", "loss, copies.pull(params, global_step)"),
        ("the pull in session.Replica(...) is no part of", "whose pull.w the step uses"),
    ),
    "another push": (
        ME,
        ME.replace("pull, push", "pull, copies.send(grads, params)"),
        ("the push in session.Replica(...) is no part of",),
    ),
    "a schedule from before": (
        UPDATE,
        "rate = tf.train.exponential_decay(0.2, global_step, 100, 0.1)\n"
        + UPDATE.replace("(flags.learning_rate)", "(rate)"),
        ("ExponentialDecay", *NOT_ON_THE_PS, "make optimizers, schedules"),
    ),
    "a constant from before": (
        UPDATE,
        f"half = tf.constant(0.5)\n{UPDATE}".replace(
            "zip(push.values", "zip([half * g for g in push.values]"
        ),
        NOT_ON_THE_PS,
    ),
    "the pulled values, sent back": (
        APPLY,
        """    sent = zip(params, push.values, pull.w)
    step = tf.group(*[p.assign_sub(g * x) for p, g, x in sent])
""",
        (*NOT_ON_THE_PS, "use pull.on_ps there, not pull.w"),
    ),
    "the count inside the update": (
        UPDATE,
        UPDATE.replace(
            OPTIMIZER,
            """    rate = tf.train.exponential_decay(0.2, global_step, 100, 0.1)
    optimizer = tf.train.GradientDescentOptimizer(rate)
""",
        ),
        ("reads global_step, which already counts it", "use update.number"),
    ),
    "counted by apply_gradients, too": (
        APPLY,
        APPLY.replace("params))", "params), global_step=global_step)"),
        ("counts the update a second time", "leave global_step out of apply_gradients"),
    ),
    "counted twice": (
        UPDATE,
        f"""with session.next_update(global_step, flags, push) as first:
    once = tf.identity(first.number)
with tf.control_dependencies([once]):
    {UPDATE.replace(chr(10), chr(10) + "    ").rstrip()}
""",
        ("counts the update a second time",),
    ),
    "a counter on the worker": (
        HERE,
        f"{HERE}    seen = tf.Variable(0, name='seen', trainable=False)\n",
        ("seen is a global variable, but not on a ps", "LOCAL_VARIABLES"),
    ),
    "a Keras layer on the worker": (
        PULL,
        f"{PULL}    import keras\n    keras.layers.Dense(3).build([None, 4])\n",
        ("is a global variable, but not on a ps", "Keras layer"),
    ),
    "a variable that nobody trains": (
        VARIABLES,
        f"{VARIABLES}    tf.Variable(0.0, name='scale')\n",
        ("scale is trainable, but not among the params", "never be trained"),
    ),
    "a parameter without a gradient": (
        GRADS,
        f"{GRADS}    grads = [None, *grads[1:]]\n",
        ("weights_0 has no gradient",),
    ),
    "a gradient of another type": (
        GRADS,
        f"{GRADS}    grads = [tf.cast(grads[0], tf.float64), *grads[1:]]\n",
        ("the value for weights_0 is float64, but the parameter is float32: cast it",),
    ),
    "a gradient too few": (
        GRADS,
        f"{GRADS}    grads = grads[1:]\n",
        ("copies.send got 3 values for 4 parameters",),
    ),
    "a Python function on the ps": (
        APPLY,
        """    grads = [tf.numpy_function(lambda g: g, [g], tf.float32) for g in push.values]
    step = optimizer.apply_gradients(zip(grads, params))
""",
        ("is a Python function on a ps", "on the worker, before copies.send"),
    ),
    "no update": (
        "[me]",
        "[me._replace(update=None)]",
        ("session.Replica(...) has no update",),
    ),
    "a parameter of more than 2 GB": (
        VARIABLES,
        """    params = models.create(flags)  # weights, biases, weights, ...
    params.append(tf.Variable(lambda: tf.zeros([2**29 + 1]), name="table"))
""",
        ("table has 2,147,483,652 bytes", "partitioner=tf.fixed_size_partitioner"),
    ),
}


def test_an_update_that_is_not_counted_on_the_ps_is_refused(tmp_path):
    """Before the worker needs a ps, so here there is none."""
    old, new, words = REFUSED["an update outside"]
    script = changed("HogWild", tmp_path, (old, new)) / "HogWild" / "worker.py"
    ps, *workers = (f"localhost:{port}" for port in network.free_ports(3, private=False))
    hosts = ["--ps_hosts", ps, "--worker_hosts", ",".join(workers)]
    done = subprocess.run(
        [sys.executable, script, *hosts, "--steps", "5", "--results", tmp_path / "results"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=environment(PYTHONPATH=str(tmp_path)),
    )  # fmt: skip
    assert done.returncode == 1
    (error,) = re.findall(r"^ValueError: .*$", done.stdout, re.M)
    for word in words:
        assert word in error
    assert not (tmp_path / "results" / "parameters.npz").exists()


@pytest.fixture
def build(monkeypatch):
    """`build("HogWild", (old, new), ...)` builds the graph of its script with some text replaced,
    and checks it as its session would."""

    def _build(name: str, *changes: tuple[str, str]) -> dict:
        path = ROOT / name / "worker.py"
        source = path.read_text()
        for old, new in ((SERVER, "server = None\n"), *changes):
            assert source.count(old) == 1, old
            source = source.replace(old, new)
        monkeypatch.setenv("TASK_RESTARTS", "0")  # as from the launcher: the task writes no part
        monkeypatch.setattr("common.told.by_hand.check_free", lambda address: None)
        monkeypatch.setattr(sys, "argv", [str(path)])
        before = source[: source.index("with session.training(")]
        session_ = source[source.index("with session.training(") :].partition("\n    while")[0]
        call = session_.removeprefix("with session.training(").rpartition(") as sess:")[0]
        built = {}
        with tf.Graph().as_default():
            exec(before, built)
            replicas = eval(
                f"(lambda task, server, params, replicas, **more: replicas)({call})", built
            )
            params, rounds = built["params"], built.get("rounds")
            checks.check(built["task"], params, built["global_step"], replicas, rounds is not None)
        return built

    return _build


@mock.patch.dict("os.environ")  # undoes the script's changes
@pytest.mark.parametrize("how", REFUSED)
def test_the_check_refuses_what_would_mislead(build, how):
    """In the graph that the script builds."""
    old, new, words = REFUSED[how]
    with pytest.raises(ValueError) as refused:
        build("HogWild", (old, new))
    for word in words:
        assert word in str(refused.value)
    assert "\n" not in str(refused.value)


MEAN = "    means = [total / flags.workers for total in gathered.values]\n"
GATHERED = "with session.next_update(global_step, flags, gathered) as update:\n"
ROUNDS_REFUSED = {
    "a mean on the chief": (
        [(MEAN, ""), (GATHERED, MEAN.lstrip() + GATHERED)],
        NOT_ON_THE_PS,
    ),
    "counted by the update, too": (
        [("for p, mean in zip(params, means)])", "for p, mean in zip(params, means)], "
          "global_step.assign_add(1))")],
        ("counts the update a second time",),
    ),
    "changed on the chief, as if it had arrived": (
        [(GATHERED, "gathered = gathered._replace(values=[1.0 * w for w in gathered.values])\n"
          + GATHERED)],
        NOT_ON_THE_PS,
    ),
    "changed on the worker after sending": (
        [("rounds.push(push, token)",
          "rounds.push(push._replace(values=[2 * w for w in push.values]), token)")],
        NOT_ON_THE_PS,
    ),
    "clipped on the worker, and back on the ps": (
        [("    step = rounds.push(push, token)\n",
          "    clipped, _ = tf.clip_by_global_norm([tf.identity(w) for w in push.values], 1.0)\n"
          "    with tf.device('/job:ps/task:0'):\n"
          "        clipped = [tf.identity(w) for w in clipped]\n"
          "    step = rounds.push(push._replace(values=clipped), token)\n")],
        NOT_ON_THE_PS,
    ),
    "rows of a table": (
        [("rounds.push(push, token)",
          "rounds.push(push._replace(values=push.values * 2), token)")],
        ("rounds.push got 8 values for 4 parameters", "rows of tables"),
    ),
    "the update in place of the token": (
        [("session.Replica(step, loss, pull, push, token)",
          "session.Replica(step, loss, pull, push, update)")],
        ("the update in session.Replica(...) is no part of", "the token of rounds.wait()"),
    ),
    "counted in the worker's step": (
        [("    step = rounds.push(push, token)\n", "    step = tf.group(rounds.push(push, token), "
          "global_step.assign_add(1))\n")],
        ("in the step of a worker, changes global_step",),
    ),
    "an update in the worker's step": (
        [("    step = rounds.push(push, token)\n", "    step = tf.group(rounds.push(push, token), "
          "params[0].assign_add(push.values[0]))\n")],
        ("in the step of a worker, changes weights_0", "between rounds.gather and rounds.release"),
    ),
}  # fmt: skip


@mock.patch.dict("os.environ")
@pytest.mark.parametrize("how", ROUNDS_REFUSED)
def test_the_check_refuses_it_in_rounds_too(build, how):
    changes, words = ROUNDS_REFUSED[how]
    with pytest.raises(ValueError) as refused:
        build("Local-SGD", *changes)
    for word in words:
        assert word in str(refused.value)


@mock.patch.dict("os.environ")
@pytest.mark.parametrize(
    "how", ["as it is", "clipped before", "clipped inside", "a schedule inside"]
)
def test_the_check_accepts_what_is_right(build, how):
    clipped = "clipped, _ = tf.clip_by_global_norm({}, 1.0)\n"
    changes = {
        "as it is": [],
        "clipped before": [(GRADS, f"{GRADS}    {clipped.format('grads')}"),
                           ("copies.send(grads", "copies.send(clipped")],
        "clipped inside": [(APPLY, f"    {clipped.format('push.values')}"
                            + APPLY.replace("push.values", "clipped"))],
        "a schedule inside": [(OPTIMIZER, """
    rate = tf.train.exponential_decay(0.2, update.number, 9, 0.1)
    optimizer = tf.train.AdamOptimizer(rate)
""")],
    }  # fmt: skip
    build("HogWild", *changes[how])


@mock.patch.dict("os.environ")
def test_types_travel_apart_and_large_parameters_in_parts(build):
    """One transfer for each ps and type, and none of more than 2 GB."""
    more = """
    params.append(tf.Variable(lambda: tf.zeros([3], tf.float64), name="double"))
    params += [tf.Variable(lambda: tf.zeros([2**28]), name=f"large_{k}") for k in range(3)]
"""
    made = build(
        "HogWild",
        (VARIABLES, VARIABLES.rstrip() + more),
        ("pull.w, next_batch", "pull.w[:4], next_batch"),
        ("copies.send(grads, params)", "copies.send([*grads, *pull.w[4:]], params)"),
    )
    small = 4 * sum(param.shape.num_elements() for param in made["params"][:4])
    for way in ("pull/", "push/"):
        cut = [op.inputs[0] for op in made["loss"].graph.get_operations()
               if op.type == "SplitV" and op.name.startswith(way)]  # fmt: skip
        sizes = [flat.shape.num_elements() * flat.dtype.size for flat in cut]
        assert sorted(sizes) == [3 * 8, 2**30, 2**30, small + 2**30]


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
        with session.next_update(global_step, flags, [grad]) as update:
            step = tf.train.GradientDescentOptimizer(0.1).apply_gradients([(grad, param)])
        checks.check_update([param], global_step, step, update)


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


@mock.patch.dict("os.environ")
@pytest.mark.parametrize(
    ("measures", "words"),
    [
        (
            {"accuracy": [], "loss": [None]},
            ("evaluate returns accuracy with the shape ()", "[batch]"),
        ),
        ({"accuracy": [None], "loss": [None, 10]}, ("evaluate returns loss", "their mean over")),
        ({"accuracy": [None]}, ("evaluate must also return loss",)),
    ],
)
def test_evaluate_must_return_a_value_for_each_example(measures, words):
    given = {
        name: evaluation.Metric(tf.placeholder(tf.float32, shape))
        for name, shape in measures.items()
    }
    with pytest.raises(ValueError) as refused:
        evaluation._check(given)
    for word in words:
        assert word in str(refused.value)


FROZEN = """    params = models.create(flags)  # weights, biases, weights, ...
    frozen = tf.Variable(lambda: tf.fill([3], 7.0), trainable=False, name="frozen")
"""
EVALUATE = """
def evaluate(values, x, labels):
    *w, held = values
    measured = models.evaluate(flags.model, w, x, labels)
    return measured | {"held": tf.fill(tf.shape(labels), tf.reduce_sum(held))}


# 6. The monitored"""


def test_variables_that_are_not_trained_reach_evaluation_and_results(run, tmp_path):
    """A frozen layer, or moving statistics: they follow the parameters."""
    root = changed(
        "HogWild",
        tmp_path,
        (VARIABLES, FROZEN),
        ("# 6. The monitored", EVALUATE.lstrip()),
        ("server, params, [me])", "server, [*params, frozen], [me], evaluate=evaluate)"),
    )
    finished = run("HogWild", "--steps", 30, root=root)
    assert finished.summary["test_held"] == pytest.approx(21)
    assert finished.parameters[-1].tolist() == [7, 7, 7]
    with np.load(finished.results / "parameters.npz") as file:
        assert file.files[-1] == "frozen"
