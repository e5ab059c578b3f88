"""Stale-Synchronous-Parallel: nobody is more than s + 1 steps ahead, whatever fails, and nobody
waits for ever.

`test_replay.py` compares its updates with NumPy.
"""

import argparse
import json
import os
import re
import signal
import sys

import numpy as np
import pytest
import simulate
import tensorflow.compat.v1 as tf
from conftest import ENDLESS, ROOT, copy_example, eventually, kill_and_see_it_back, processes, reach
from machine import seconds
from replays import EXACT, distance, flat, replayed, scheme_of

from common.record import trace

EXAMPLE = "Stale-Synchronous-Parallel"
sys.path.append(str(ROOT / EXAMPLE))
from clocks import Clocks  # noqa: E402

TINY = ["--model", "linear", "--batch_size", 0, "--learning_rate", 0.3]


def order(events: list[list[dict]]) -> list[int]:
    """The worker of each update, in order; those that no event tells: -1."""
    found = {event["global_step"]: k for k, mine in enumerate(events) for event in mine}
    return [found.get(number, -1) for number in range(min(found), max(found) + 1)]


def leads(workers: list[int], n: int) -> list[int]:
    """After each update: by how many updates the first worker leads the last."""
    counts = np.cumsum([np.arange(n) == k for k in workers], axis=0)
    return (counts.max(axis=1) - counts.min(axis=1)).tolist()


def events_of(finished, n: int) -> list[list[dict]]:
    return [finished.events(k) for k in range(n)]


def assert_pulls_contain(events: list[list[dict]], s: int) -> None:
    """A worker's step t begins with parameters that contain step t - 1 - s of all others. So no
    update is staler than 2 s + 1 steps of each other worker."""
    made = [[event["global_step"] for event in mine] for mine in events]
    for k, mine in enumerate(events):
        for t, event in enumerate(mine, 1):
            assert event["staleness"] <= (2 * s + 1) * (len(events) - 1)
            for other in made[:k] + made[k + 1 :]:
                assert np.searchsorted(other, event["pulled_at"], "right") >= t - 1 - s


@pytest.mark.parametrize(
    ("s", "more"),
    [
        (2, []),
        (0, []),
        pytest.param(1, ["--ps", 2], marks=pytest.mark.slow("several ps")),
        pytest.param(2, ["--steps_per_execution", 4], marks=pytest.mark.slow("several in a call")),
    ],
)
def test_the_bound_holds_and_is_reached(run, s, more):
    """With a late worker; with s = 0, that is lockstep."""
    finished = run(EXAMPLE, *TINY, "--workers", 3, "--steps", 90, "--max_staleness", s, *more,
                   "--delay", f"2:{seconds(0.02)}")  # fmt: skip
    events = events_of(finished, 3)
    workers = order(events)
    assert len(workers) == 90 and -1 not in workers
    assert max(leads(workers, 3)) == s + 1
    assert_pulls_contain(events, s)
    waited = [task["waiting"] / task["seconds"] for task in finished.summary["tasks"][-3:]]
    assert min(waited[:2]) > waited[2] + 0.2  # the fast ones wait for the late one
    if s == 0:
        assert all(sorted(workers[i : i + 3]) == [0, 1, 2] for i in range(0, 90, 3))
    if "--ps" not in more:  # several ps: a pull may see a part of an update
        scheme = scheme_of(EXAMPLE, finished.summary["flags"])
        assert distance(flat(finished), replayed(finished, scheme)) < EXACT


def test_with_a_large_bound_nobody_waits(run):
    """As in HogWild, a late worker falls far behind."""
    finished = run(EXAMPLE, *TINY, "--workers", 3, "--steps", 90, "--max_staleness", 1000,
                   "--delay", f"2:{seconds(0.05)}")  # fmt: skip
    assert max(leads(order(events_of(finished, 3)), 3)) > 10


def test_one_worker_waits_for_nobody(run):
    finished = run(EXAMPLE, *TINY, "--workers", 1, "--steps", 30, "--max_staleness", 0)
    assert order(events_of(finished, 1)) == [0] * 30


def test_a_reached_accuracy_ends_those_who_wait(run):
    """Worker 0, which evaluates, mostly waits for worker 1; and the other way round."""
    for late in (0, 1):
        finished = run(EXAMPLE, "--max_staleness", 0, "--target_accuracy", 0.8, "--steps", ENDLESS,
                       "--delay", f"{late}:{seconds(0.02)}")  # fmt: skip
        assert [task["exit_code"] for task in finished.summary["tasks"]] == [0, 0, 0]
        # The last evaluation is of later parameters: the other worker still pushed.
        *during, _ = trace.read_evaluations(finished.results)
        assert max(each["test_accuracy"] for each in during) >= 0.8
        assert max(leads(order(events_of(finished, 2)), 2)) == 1


@pytest.mark.slow("a run that is stopped")
def test_stopping_the_launcher_while_workers_wait(start):
    process, where = start(EXAMPLE, "--steps", ENDLESS, "--max_staleness", 0,
                           "--delay", f"1:{seconds(0.05)}")  # fmt: skip
    reach(where, 40)
    os.kill(process.pid, signal.SIGINT)
    assert eventually(lambda: not processes(), 5)
    output, _ = process.communicate(timeout=seconds(5))
    assert process.returncode == 128 + signal.SIGINT
    assert "stopped by SIGINT; nothing is left running" in output


# Worker 1 dies at its 20th step, in its middle. `unsaid`: it has ticked, and told nobody.
DIE = """
with tf.device(global_step.device), tf.control_dependencies([applied]):
    one = tf.IndexedSlices(tf.ones([1], tf.int64), [task.index])
    unsaid = clocks._finished.scatter_add(one).op
# 6. """
LOOP = "        sess.run(step)"
DEATH = """        import os
        made = globals().get("made", 0) + 1
        if task.index == 1 and made == 20 and os.environ["TASK_RESTARTS"] == "0":
            sess._steps[0].session.run({})
            os.kill(os.getpid(), 9)
        sess.run(step)"""


@pytest.mark.slow("three runs")
@pytest.mark.parametrize("died_after", ["token.number", "applied", "unsaid"])
def test_a_worker_dies_in_the_middle_of_a_step(run, tmp_path, died_after):
    """Whatever it had done of it, the others go on once it is back."""
    source = (ROOT / EXAMPLE / "worker.py").read_text()
    assert source.count("\n# 6. ") == source.count(LOOP) == 1
    source = source.replace("\n# 6. ", DIE).replace(LOOP, DEATH.format(died_after))
    root = copy_example(EXAMPLE, tmp_path / "mine", worker=source)
    finished = run(EXAMPLE, "--max_staleness", 0, "--steps", 100, root=root)
    assert [task["restarts"] for task in finished.summary["tasks"]] == [0, 0, 1]
    events = events_of(finished, 2)
    # What it made since its last line is told by nobody else.
    workers = [1 if k < 0 else k for k in order(events)]
    assert len(workers) == 100
    # It has made one more update than its clock says, if it died before its tick.
    early = died_after == "applied"
    assert max(leads(workers, 2)) <= 1 + early
    assert (workers.count(0), workers.count(1)) in [(50, 50), (49 + (not early), 50 + early)]


@pytest.mark.slow("three tasks are killed")
def test_killed_tasks_neither_end_the_run_nor_loosen_the_bound(start):
    """In turn, a worker, the chief, and the ps: after that, all begin again level."""
    s, steps, late = 2, 1500, seconds(0.004)
    process, where = start(EXAMPLE, "--workers", 3, "--steps", steps, "--max_staleness", s,
                           "--delay", f"2:{late}")  # fmt: skip
    reach(where, 60)
    for job, index in (("worker", 2), ("worker", 0)):
        kill_and_see_it_back(where, job, index, workers=3)
    killed = kill_and_see_it_back(where, "ps", 0, workers=3)
    output, _ = process.communicate(timeout=seconds(120))
    assert process.returncode == 0, output
    summary = json.loads((where / "summary.json").read_text())
    assert summary["global_step"] == steps
    assert [task["restarts"] for task in summary["tasks"]] == [1, 1, 0, 1]
    # Each says what it finds; the first to go on finds what was restored.
    at = min(map(int, re.findall(r"\] lost a .*: continues at update (\d+)$", output, re.M)))
    events = [
        [json.loads(line) for line in path.read_text().splitlines()]
        for path in sorted(where.glob("events-worker-*.jsonl"))
    ]
    second = [[e for e in mine if e["counted"] > killed] for mine in events]
    workers = order(second)
    assert -1 not in workers and len(workers) == steps - at
    assert 1 <= max(leads(workers, 3)) <= s + 1


def test_the_simulation_keeps_the_bound():
    """And with a bound that nobody reaches, it is HogWild's to the last bit."""
    for s in (0, 3):
        told = {"workers": 5, "steps": 200, "delay": {4: 0.05}, "max_staleness": s}
        cluster, journal = simulate.run(scheme=EXAMPLE, **told)
        assert sum(cluster.pushed) == 200
        assert max(journal.steps) - min(journal.steps) <= s + 1
        assert max(journal.staleness) <= (2 * s + 1) * 4
        events = journal.summary(cluster)["tasks"]
        assert events[1]["waiting"] > 0.5 * events[1]["seconds"]
    told = {"workers": 5, "steps": 200, "delay": {4: 0.05}}
    free, _ = simulate.run(scheme=EXAMPLE, max_staleness=200, **told)
    hogwild, _ = simulate.run(scheme="HogWild", **told)
    np.testing.assert_array_equal(free.w, hogwild.w)
    assert free.env.now == hogwild.env.now


def test_a_clock_counts_only_what_has_been_applied():
    """Whatever the order in which a session happens to run operations: each one that counts the
    step or wakes somebody has the update among what it waits for."""
    flags = argparse.Namespace(workers=2, max_staleness=1, steps=10)
    task = argparse.Namespace(flags=flags, index=0, is_chief=True)
    with tf.Graph().as_default() as graph:
        global_step = tf.Variable(0, dtype=tf.int64, name="global_step")
        clocks = Clocks(task, global_step)
        applied = tf.Variable(0.0).assign_add(1.0).op
        before = set(graph.get_operations())
        clocks.tick(applied)
        acting = [op for op in graph.get_operations() if op not in before and acts(op)]
        assert any("Scatter" in op.type for op in acting)
        assert any(op.type == "StatelessIf" or op.type == "If" or "Queue" in op.type
                   for op in acting)  # fmt: skip
        assert all(applied in awaited(op) for op in acting)


def acts(op: tf.Operation) -> bool:
    """Whether it changes something, or may."""
    return any(name in op.type for name in ("Scatter", "Assign", "Enqueue", "If"))


def awaited(op: tf.Operation) -> set[tf.Operation]:
    """All operations that must have run before this one."""
    found, ask = set(), [op]
    while ask:
        asked = ask.pop()
        new = {*asked.control_inputs, *(tensor.op for tensor in asked.inputs)} - found
        found |= new
        ask += new
    return found


def test_a_negative_bound_is_refused(run):
    finished = run(EXAMPLE, "--max_staleness", -1, ok=False)
    assert finished.code == 2
    assert "--max_staleness" in finished.output.splitlines()[-1]
