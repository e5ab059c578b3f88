"""TensorFlow aborts a call now and then although no task is lost: the run goes on, exactly."""

import argparse
import concurrent.futures
import json
import re
import shutil
import subprocess
import sys
import types
from pathlib import Path

import grpc
import pytest
import tensorflow.compat.v1 as tf
from conftest import ROOT, copy_example, environment
from machine import seconds
from replays import EXACT, class_of, distance, flat, replayed, scheme_of
from test_stopping import BATCHES, ENDING, changed

from common.gates import Gate
from common.graph import aborts
from common.record.words import ABORTED
from common.training.rounds import Rounds

# Some of a worker's calls raise the error before they are carried out, others afterwards, in the
# forms in which TensorFlow raises it. Some of these end the data set, too: then calls find what is
# ready, and then no element, or every second time the first is told that its element is cancelled.
# Counts, by place, what it has aborted, and how often there was no element.
ABORT = """
import collections, itertools, json, threading, traceback

TEXT = "The same RunGraph (Worker) request was received twice. step_id: 3"
calls, aborted = collections.Counter(), collections.Counter()
ends = itertools.count(task.index)
# Among how many calls one is aborted before it is made, and one afterwards. Those between steps are
# repeated, so not all of them may be aborted.
AMONG = {"step": (7, 11), "chief": (7, 11), "loop": (3, 4), "data": (3, 4), "start": (7, 11),
         "end": (3, 4)}
*_, start = [op for op in global_step.graph.get_operations() if op.type == "MakeIterator"]
elements, iterator = start.inputs
kind = {key: iterator.op.get_attr(key) for key in ("output_types", "output_shapes")}
# As many elements as TensorFlow gives after an abort, from none to those that are ready and one.
left = tf.random.uniform([], 0, data.READY + 2, tf.int64)
ready = tf.raw_ops.TakeDataset(input_dataset=elements, count=left, **kind)
end_data = tf.raw_ops.MakeIterator(dataset=ready, iterator=iterator)


def abort(kind, place, when):
    aborted[f"{place}, {when}"] += 1
    raise kind(None, None, TEXT if kind is tf.errors.AbortedError else f"[_Derived_]{TEXT}")


def made(place, call, *args, **more):
    try:
        return call(*args, **more)
    except tf.errors.OutOfRangeError as error:
        if "End of sequence" in error.message:
            aborted[f"no element, {place}"] += 1
        if "End of sequence" in error.message and next(ends) % 2:
            aborted["cancelled element"] += 1
            raise tf.errors.CancelledError(None, None, "[[{{node next_element}}]]")
        raise


def aborting(call, session=None):
    def called(*args, **more):
        names = [frame.name for frame in traceback.extract_stack(limit=40)]
        known = {"_make_updates": "chief", "finish": "end", "is_cut": "data",
                 "_take": "step" if session else "loop"}
        place = next((known[name] for name in reversed(names) if name in known), "start")
        calls[place] += 1
        k = calls[place]
        before, after = AMONG[place]
        if k % before == min(3, before - 1):
            abort(tf.errors.AbortedError, place, "before")
        found = made(place, call, *args, **more)
        if k % after == min(5, after - 1):
            if place == "step":
                run(session, end_data)
            abort(tf.errors.CancelledError, place, "after")
        return found

    return called


make_callable, run = tf.Session.make_callable, tf.Session.run
tf.Session.make_callable = lambda *args, **more: aborting(make_callable(*args, **more), args[0])
tf.Session.run = aborting(tf.Session.run)

# 6. """
SAY = '\nprint("aborted", json.dumps(aborted), flush=True)\n'


def aborting(example: str, to):
    source = (ROOT / example / "worker.py").read_text()
    assert source.count("\n# 6. ") == 1
    return copy_example(example, to, worker=source.replace("\n# 6. ", ABORT) + SAY)


@pytest.mark.usefixtures("two_cores")
@pytest.mark.parametrize(
    ("example", "more"),
    [
        ("HogWild", []),
        ("AEASGD", ["--window", 3]),
        ("Synchronous-SGD", []),
        ("Local-SGD", ["--window", 2, "--ps", 2]),
        ("HogWild", ["--steps_per_execution", 4]),
        ("Synchronous-SGD", ["--steps_per_execution", 4]),
        ("Stale-Synchronous-Parallel", ["--max_staleness", 0]),
    ],
)
def test_a_run_with_aborted_calls_matches_its_formula(run, tmp_path, example, more):
    """Aborted in the loop, in the chief's thread and at the end, before or after the call."""
    steps, workers = 240, 2  # a worker that is slower than the other makes enough of them, too
    finished = run(example, "--model", "linear", "--batch_size", 0, "--learning_rate", 0.3,
                   "--steps", steps, *more, root=aborting(example, tmp_path / "mine"))  # fmt: skip
    scheme = scheme_of(example, finished.summary["flags"])
    in_rounds = class_of(example).worker == "synchronous"
    assert distance(flat(finished), replayed(finished, scheme)) < EXACT
    assert finished.summary["global_step"] == steps
    assert "lost" not in finished.output and "restarted" not in finished.output
    logs = [(finished.results / "logs" / f"worker-{k}.log").read_text() for k in range(workers)]
    aborted = [json.loads(re.search(r"^aborted (.*)$", log, re.M)[1]) for log in logs]
    for log, mine in zip(logs, aborted):
        assert {"step, before", "step, after", "end, before"} <= mine.keys()
        assert 0 < log.count("the abort ended the data set") <= mine["step, after"]
        # A step that finds none may be in the middle of an update: elastic averaging pushes first.
        assert {key for key in mine if key.startswith("no element")} == {"no element, data"}
    assert any("cancelled element" in mine for mine in aborted)
    assert {"loop, before", "loop, after", "end, after"} <= aborted[0].keys()
    assert not in_rounds or {"chief, before", "chief, after"} <= aborted[0].keys()
    if not in_rounds:
        made = [e["global_step"] for k in range(workers) for e in finished.events(k)]
        assert sorted(made) == list(range(1, steps + 1))


def test_data_that_does_not_repeat_ends_the_run_after_an_abort(run, tmp_path):
    """It cannot go on where it was. The log says why it ended."""
    finite = (BATCHES, ENDING.replace("10**9", "10**8"))
    root = changed("HogWild", tmp_path / "mine", finite, ("\n# 6. ", ABORT))
    finished = run("HogWild", "--steps", 10**6, root=root)
    assert "its data set has ended, so the run ends at update" in finished.output
    logs = [(finished.results / "logs" / f"worker-{k}.log").read_text() for k in (0, 1)]
    assert any("the abort ended the data set, which does not repeat" in log for log in logs)


def raising(error):
    def call():
        raise error

    return call


@pytest.mark.parametrize("kind", [tf.errors.AbortedError, tf.errors.CancelledError])
def test_it_is_recognised_in_every_form(kind):
    text = "From /job:ps/task:0:\nThe same RunGraph (Worker) request was received twice. ..."
    with pytest.raises(aborts.CallAborted):
        aborts._called(raising(kind(None, None, text)), 3)


@pytest.mark.parametrize("kind", [tf.errors.AbortedError, tf.errors.CancelledError])
def test_other_errors_stay_what_they_are(kind):
    """A lost ps, for example."""
    with pytest.raises(kind):
        aborts._called(raising(kind(None, None, "worker service is being shut down")), 3)


@pytest.fixture
def seeds(tmp_path, monkeypatch):
    """Requests of TensorFlow can get the same random numbers again, so tasks refuse them."""
    if not (compiler := shutil.which("cc")):
        pytest.skip("no C compiler")
    library = tmp_path / "seeds.so"
    source = Path(__file__).with_name("seeds.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    monkeypatch.setenv("LD_PRELOAD", str(library))


def collide(log: Path, *flags: str) -> list[str]:
    """What each step of `colliding.py` came to, in order. Its stderr is a file, as under run.sh."""
    verbose = {"TF_CPP_MIN_LOG_LEVEL": "0", "TF_CPP_VMODULE": "master_session=2"}
    script = Path(__file__).with_name("colliding.py")
    with log.open("w") as stderr:
        process = subprocess.run(
            [sys.executable, script, *flags], stdout=subprocess.PIPE, stderr=stderr, text=True,
            env=environment() | verbose | {"PYTHONPATH": str(ROOT)}, timeout=seconds(60),
        )  # fmt: skip
    assert process.returncode == 0, log.read_text()[-3000:]
    return re.findall(r"^(made|read \d|aborted|waits|does not wait)$", process.stdout, re.M)


@pytest.mark.usefixtures("seeds")
def test_a_step_that_its_worker_refuses_does_not_wait(tmp_path):
    """Without `Task.first` it does; then `watch` ends it."""
    found = collide(tmp_path / "log")
    assert found == ["made", "made", "made", "aborted", "made"]


@pytest.mark.usefixtures("seeds")
def test_a_step_that_waits_is_dropped(tmp_path):
    found = collide(tmp_path / "log", "--out_of_order")
    assert found == ["made", "made", "made", "waits", "aborted", "made"]


@pytest.mark.usefixtures("seeds")
def test_a_read_that_its_worker_refuses_does_not_wait(tmp_path):
    found = collide(tmp_path / "log", "--read")
    assert found == ["made", "made", "read 1", "aborted", "read 1"]


@pytest.mark.usefixtures("seeds")
def test_a_read_that_waits_and_is_dropped_loses_no_row(tmp_path):
    """It is repeated, and finds the row."""
    found = collide(tmp_path / "log", "--read", "--out_of_order")
    assert found == ["made", "made", "read 1", "waits", "read 1", "read 0"]


@pytest.mark.slow("a long run")
@pytest.mark.usefixtures("seeds")
@pytest.mark.parametrize("example", ["HogWild", "Synchronous-SGD"])
def test_tensorflow_itself_aborts_calls(run, monkeypatch, example):
    """With the error that it really raises. Every update is made once; the data does not end."""
    monkeypatch.setenv("SEED_BITS", "19")
    # One in a hundred of these aborts is of the kind that `watch` ends after two minutes.
    finished = run(example, "--steps", 5000, patience=600)
    assert finished.summary["global_step"] == 5000
    if example == "HogWild":
        numbers = [event["global_step"] for k in (0, 1) for event in finished.events(k)]
    else:
        lines = (finished.results / "updates.jsonl").read_text().splitlines()
        numbers = [json.loads(line)["global_step"] for line in lines]
    assert sorted(numbers) == list(range(1, 5001))
    logs = [path.read_text() for path in (finished.results / "logs").glob("worker-*.log")]
    assert any(ABORTED in log for log in logs)
    assert not any("has ended" in log for log in logs)


LOG = """[worker 0] step 89411  loss 0.0002329  staleness 0
E0000 00:00:1.14 29013 master_session.cc:580] RunStep still blocked after 60 seconds. Failed with \
error status: ABORTED: From /job:worker/replica:0/task:0:
The same RunGraph (Worker) request was received twice. goo.gle/debugstr graph_handle: "c" step_id: \
10865145590402531 exec_opts { } session_handle: "326d" request_id: 7600513294260347964
E0000 00:00:1.14 29013 master_session.cc:585] - No response from RunGraph call to worker: \
/job:ps/replica:0/task:1
E0000 00:00:1.14 29013 master_session.cc:585] - No response from RunGraph call to worker: \
/job:worker/replica:0/task:0
"""


def test_the_log_says_which_step_waits_for_ever():
    (found,) = aborts.BLOCKED.finditer(LOG)
    assert found[1] == "10865145590402531"
    assert aborts.WAITS.findall(found[2]) == [("ps", "1"), ("worker", "0")]
    assert not aborts.BLOCKED.search(LOG.replace("received twice", "refused"))


class Refusing:
    """A session of which some calls raise errors."""

    def __init__(self, *errors):
        self._errors = list(errors)

    def run(self, op):
        if self._errors:
            raise self._errors.pop(0)


@pytest.mark.parametrize("kind", [tf.errors.AbortedError, tf.errors.CancelledError])
def test_a_gate_opens_although_calls_are_aborted(kind):
    """Also in a session that does not repeat them."""
    text = "The same RunGraph (Worker) request was received twice. ..."
    with tf.Graph().as_default():
        gate = Gate("gate", "")
        session = Refusing(*[kind(None, None, text)] * 2)
        gate.open(session)
        assert not session._errors
        gate.open(Refusing(tf.errors.CancelledError(None, None, "the queue is closed")))
        with pytest.raises(tf.errors.AbortedError):
            gate.open(Refusing(tf.errors.AbortedError(None, None, "the ps is shut down")))


def test_a_token_given_again_is_that_of_a_complete_update():
    """An update is counted before it is applied. A worker that gets its number then, after an
    aborted step, would pull parameters of which some have been updated and some have not."""
    flags = argparse.Namespace(steps=9, workers=1)
    task = types.SimpleNamespace(flags=flags, is_chief=True, index=0)
    with tf.Graph().as_default(), tf.Session() as session:
        params, global_step = [tf.Variable([1.0])], tf.Variable(0, dtype=tf.int64)
        rounds = Rounds(task, params, global_step)
        token = rounds.wait()
        session.run(tf.global_variables_initializer())
        session.run(rounds.again)  # the chief has not begun
        session.run(rounds.start)
        assert session.run(token.number) == 0
        session.run(global_step.assign(1))  # counted
        session.run(rounds.again)
        assert session.run(token.number) == 0


def test_a_step_is_dropped_on_the_task_that_waits(capsys):
    """The request is TensorFlow's own message: field 1 is the step's number."""
    asked = []
    handler = grpc.method_handlers_generic_handler(
        "tensorflow.WorkerService",
        {"CleanupGraph": grpc.unary_unary_rpc_method_handler(lambda r, _: asked.append(r) or b"")},
    )
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(1), [handler])
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    for step in (1, 127, 128, 10865145590402531):
        aborts._drop(address, step)
    server.stop(None).wait()
    assert [whole(request) for request in asked] == [1, 127, 128, 10865145590402531]
    assert all(request[0] == 8 for request in asked)  # field 1, a whole number
    aborts._drop(address, 1)
    assert f"cannot reach {address}" in capsys.readouterr().out


def whole(request: bytes) -> int:
    """The number in a message of one field: base 128, the lowest digit first."""
    return sum((digit & 127) << 7 * k for k, digit in enumerate(request[1:]))
