"""What the schemes do with several workers: who waits, whose gradients count, how stale they are,
what happens to local state after a failure, what they learn."""

import contextlib
import itertools
import json
import os
import re
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import (
    ROOT,
    copy_example,
    eventually,
    kill_and_see_it_back,
    processes,
    reach,
    task_pid,
)
from machine import seconds

from common.record import results, trace

pytestmark = pytest.mark.slow("thousands of steps, and tasks that are killed")


def test_synchronous_means_synchronous(start):
    """Each of 100 updates contains one gradient from each worker; then everything ends at once."""
    flags = ["--ps", 2, "--delay", "1:0.01"]
    process, where = start("Synchronous-SGD", "--steps", 100, *flags)
    path = where / "updates.jsonl"
    gone = []  # when the tasks' processes ended

    def over():
        running = [c for c in processes().values() if "--job_name" in c]
        if path.exists() and not running and not gone:
            gone.append(time.time())
        return process.poll() is not None

    assert eventually(over, 120)
    output, _ = process.communicate()
    assert process.returncode == 0, output
    summary = json.loads((where / "summary.json").read_text())
    everyone = list(range(summary["workers"]))
    made = [json.loads(line) for line in path.read_text().splitlines()]
    assert [update["global_step"] for update in made] == list(range(1, 101))
    assert all(update["workers"] == everyone for update in made)
    for task in summary["tasks"]:
        if task["job"] == "worker":
            assert (task["contributed"], task["dropped"]) == (100, 0)
    for k in everyone:
        mine = trace.read_events(where, k + 1)[k]
        assert [event["global_step"] for event in mine] == list(range(1, 101))
        assert all(min(e["pull"], e["compute"], e["push"]) >= 0 for e in mine)
    assert summary["staleness"]["max"] == 0
    if gone:
        assert gone[0] - made[-1]["time"] < seconds(2)


def test_late_pushes_find_room_after_the_last_update(run):
    """Nobody empties the queue then, and with two backups each late worker may push twice more: it
    does unless one of its hooks, which see every sixth call, has seen the end."""
    late = seconds(0.02)
    finished = run("Synchronous-SGD", "--model", "linear", "--workers", 3, "--backup_workers", 2,
                   "--steps", 600, "--delay", f"1:{late},2:{late}")  # fmt: skip
    assert finished.summary["global_step"] == 600


# A chief that dies between two rounds, when the last 20 lines of updates.jsonl are not yet written.
READ = "if made >= flags.steps or time.time() > due:"
DIE = f"""import os
            first = os.environ["TASK_RESTARTS"] == "0"
            if first and made == 220:
                os.kill(os.getpid(), 9)
            {READ[:-1]} and not (first and made > 200):"""


def test_synchronous_training_survives(start, tmp_path):
    """The chief and the ps are killed in turn: no update has two gradients from one worker, none is
    missing in updates.jsonl, and only those after the checkpoint are repeated. The checkpoints are
    in a folder whose name is a pattern for TensorFlow."""
    root = copy_example("Synchronous-SGD", tmp_path / "mine")
    source = (rounds := root / "common" / "training" / "rounds.py").read_text()
    assert source.count(READ) == 1
    rounds.write_text(source.replace(READ, DIE))
    flags = ["--steps", 1100, "--checkpoint_dir", tmp_path / "a[1]"]
    process, where = start("Synchronous-SGD", *flags, root=root)
    tail, steps = results.Tail(where / "updates.jsonl"), []

    def back() -> bool:
        steps.extend(update["global_step"] for update in tail.read())
        return steps[-1:] > [240]

    assert eventually(back, 60)  # the restarted chief has just saved a checkpoint
    os.kill(task_pid(where, "ps", 0), signal.SIGKILL)
    output, _ = process.communicate(timeout=seconds(120))
    assert process.returncode == 0, output
    assert "[worker 0] continues at update 220 of 1100" in output
    (at,) = re.findall(r"^\[worker 0\] lost a .*: continues at update (\d+)$", output, re.M)
    assert re.search(r"^\[worker 1\] lost a .*: continues at update \d+$", output, re.M)
    made = [json.loads(line) for line in (where / "updates.jsonl").read_text().splitlines()]
    again = 1100 - int(at)
    before, after = ([u["global_step"] for u in part] for part in (made[:-again], made[-again:]))
    assert before == list(range(1, len(before) + 1)) and len(before) >= len(steps)
    assert after == list(range(int(at) + 1, 1101))
    assert all(update["workers"] == [0, 1] for update in made)
    summary = json.loads((where / "summary.json").read_text())
    assert summary["global_step"] == 1100
    assert [task["restarts"] for task in summary["tasks"]] == [1, 1, 0]
    for task in summary["tasks"][1:]:
        assert (task["contributed"], task["dropped"]) == (len(made), 0)
    assert summary["test_accuracy"] > 0.95


def test_every_update_has_a_unique_number(default_run):
    """Each of 1..N appears exactly once; the staleness is the number of updates since the pull."""
    finished = default_run("AGN")
    workers, steps = finished.summary["workers"], finished.summary["flags"]["steps"]
    assert workers > 1
    every = [event for k in range(workers) for event in finished.events(k)]
    assert sorted(event["global_step"] for event in every) == list(range(1, steps + 1))
    for event in every:
        assert event["staleness"] == event["global_step"] - 1 - event["pulled_at"] >= 0
        assert min(event[part] for part in ("pull", "compute", "push", "out")) >= 0
    for k in range(workers):
        mine = finished.events(k)
        assert len(mine) > 5
        for before, after in itertools.pairwise(mine):  # its pull includes its last push
            assert after["pulled_at"] >= before["global_step"]
        first, *gaps = [event["gap"] for event in mine]
        assert first is None
        assert min(gaps) >= 0 < max(gaps)
    stale = finished.summary["staleness"]
    assert sum(stale["histogram"].values()) == steps
    assert stale["mean"] == pytest.approx(np.mean([event["staleness"] for event in every]))
    assert 0 < stale["mean"] < 2 * (workers - 1) + 10
    assert 0 < stale["theory"] <= workers - 1


def test_local_state_survives(start):
    """A worker and the ps are killed in turn: the run completes, and learns. Without the ps, the
    chief's session begins again, too. (The state that an optimizer keeps on the ps:
    `test_your_own.py`.)"""
    delay = seconds(0.003)  # so that the other worker does not finish before one is back
    process, where = start("AEAMSGD", "--steps", 400, "--delay", f"0:{delay},1:{delay}")
    reach(where, 30)
    for job, index in (("worker", 1), ("ps", 0)):
        kill_and_see_it_back(where, job, index)
    output, _ = process.communicate(timeout=seconds(120))
    assert process.returncode == 0, output
    summary = json.loads((where / "summary.json").read_text())
    assert summary["global_step"] == 400
    assert [task["restarts"] for task in summary["tasks"]] == [1, 0, 1]
    why = "was killed by SIGKILL"
    assert [task["restart_reasons"] for task in summary["tasks"]] == [[why], [], [why]]
    for job, index, count in (("ps", 0, 1), ("worker", 0, 0), ("worker", 1, 1)):
        log = (where / "logs" / f"{job}-{index}.log").read_text()
        assert log.count(f"run.sh: restart 1: this task {why}\n") == count
    assert summary["test_accuracy"] > 0.95  # as without kills: measure/sweep.json


SLOW_START = """
    import time

    x, labels = data.load(flags, "train", task.index, flags.workers)

    def chosen(k):
        if k == 0 and task.index == 1:
            time.sleep(3)
        rows = (32 * k + range(32)) % len(labels)
        return x[rows], labels[rows]

    def batch(k):
        x, labels = tf.numpy_function(chosen, [k], [tf.float32, tf.int64])
        return tf.ensure_shape(x, [32, 8, 8]), tf.ensure_shape(labels, [32])

    next_batch = data.pipeline(tf.data.Dataset.counter().map(batch), flags, task.index)
"""


def test_a_slow_first_batch(run, tmp_path):
    """Both workers wait for it before they start. Worker 0 would otherwise make hundreds of updates
    between worker 1's first pull and push."""
    source = (ROOT / "HogWild" / "worker.py").read_text()
    (usual,) = re.findall(r"^    next_batch = data.batches.*$", source, re.M)
    root = copy_example("HogWild", tmp_path, worker=source.replace(usual, SLOW_START))
    finished = run("HogWild", "--steps", 2000, root=root)
    assert finished.events(1)[0]["staleness"] < 100


def memory_of_worker(start, *flags) -> list[float]:
    """The resident memory of worker 0 in MB, from its first step to its last."""
    process, where = start("AGN", *flags)
    reach(where, 1)
    pid, seen = task_pid(where, "worker", 0), []
    while process.poll() is None:
        with contextlib.suppress(OSError, StopIteration):
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            seen.append(next(int(s.split()[1]) / 1000 for s in lines if s.startswith("VmRSS")))
        time.sleep(0.02)
    assert process.returncode == 0
    return seen


def test_memory_grows_with_neither_window_nor_steps(start):
    """5,000 local steps in windows of 10, then 5,000 in windows of 500."""
    many = memory_of_worker(start, "--workers", 1, "--window", 10, "--steps", 500)
    long = memory_of_worker(start, "--workers", 1, "--window", 500, "--steps", 10)
    third = len(many) // 3
    assert third > 5
    assert max(many[-third:]) < max(many[:third]) + 40
    assert max(long) < max(many) + 40
