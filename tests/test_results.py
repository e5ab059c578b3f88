"""The values that the summary computes from the events, and the table that shows them."""

import atexit
import concurrent.futures
import heapq
import itertools
import json
import sys
from argparse import Namespace

import numpy as np
import pytest
from conftest import environment
from machine import seconds

from common.launch import screen
from common.launch.processes import Group, Process, describe_exit
from common.record import parts, results, summary, trace
from common.record.summary import summarise
from common.told.about import About


def simulated(cycles, steps: int) -> list[list[dict]]:
    """Events of workers that pull, push after `out` seconds, and pull again after `gap` more.

    Args:
        cycles: per worker, a function from the time to the next (out, gap).
        steps: updates by all workers together.
    """
    updates = 0
    events: list[list[dict]] = [[] for _ in cycles]
    due: list = [(0.0, k, "pull", None) for k in range(len(cycles))]
    gaps: list = [None] * len(cycles)
    while updates < steps:
        time, k, what, event = heapq.heappop(due)
        if what == "pull":
            out, gap = cycles[k](time)
            event = {"pulled_at": updates, "out": out, "gap": gaps[k]}
            gaps[k] = gap
            heapq.heappush(due, (time + out, k, "push", event))
        else:
            event["staleness"] = updates - event["pulled_at"]
            events[k].append(event)
            updates += 1
            heapq.heappush(due, (time + gaps[k], k, "pull", None))
    return events


def test_theory_for_equal_workers_is_the_number_of_others_times_the_share():
    """n - 1 if the next pull follows at once; 1.5 with three workers and a share of 3/4."""
    rng = np.random.default_rng(0)
    for gap, expected in ((0.0, 2.0), (1.0, 1.5)):
        events = simulated([lambda now, gap=gap: (rng.exponential(3), gap)] * 3, 20_000)
        assert trace._theory(events) == pytest.approx(expected, rel=0.03)


def test_tasks_with_the_same_process_number_share_a_folder(tmp_path):
    """Tasks in containers, each of which is process 6 of its own."""
    folder, file = tmp_path / "run", tmp_path / "run" / "file"

    def share(k):
        for _ in range(50):
            results.create(folder)
            results.write(file, lambda opened: opened.write(b"%d" % k * 1000))
            assert len(set(file.read_text())) == 1

    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        list(threads.map(share, range(8)))
    assert list(folder.iterdir()) == [file]


@pytest.mark.parametrize("workers", [2, 4, 8])
@pytest.mark.parametrize("kind", ["late", "pauses", "straggler"])
def test_theory_is_the_mean_staleness_also_for_uneven_workers(workers, kind):
    """Workers that start one after another, pause now and then, or include a slow one: how real
    runs differ from the textbook."""
    rng = np.random.default_rng(workers)

    def worker(k):
        waits = itertools.count()

        def cycle(now):
            out, gap = rng.gamma(4, 0.25), rng.gamma(2, 0.2)
            if kind == "late" and next(waits) == 0:
                return 0.01, 40.0 * k
            if kind == "pauses" and next(waits) % 10 == 0:
                gap += 15.0
            if kind == "straggler" and k == 0:
                out *= 12
            return out, gap

        return cycle

    events = simulated([worker(k) for k in range(workers)], 400 * workers)
    measured = np.mean([event["staleness"] for mine in events for event in mine])
    assert trace._theory(events) == pytest.approx(measured, rel=0.05)


def test_theory_for_a_single_worker_is_zero():
    assert trace._theory(simulated([lambda now: (1.0, 1.0)], 10)) == 0
    assert trace._theory([[], []]) == 0


def test_theory_ignores_the_gap_between_two_sessions():
    """A restarted worker pulls much later; a restarted ps counts from its checkpoint."""
    even = [{"pulled_at": at, "out": 3.0, "gap": 1.0 if at else None} for at in (0, 2, 4, 6)]
    for at in (2, 100):
        again = [*even, *({**event, "pulled_at": event["pulled_at"] + at} for event in even)]
        assert trace._theory([even, even]) == pytest.approx(0.75)
        assert trace._theory([again, even]) == pytest.approx(0.75)


def test_a_push_counts_as_dropped_only_if_its_update_is_known(tmp_path):
    """A killed chief may lose an update's line; the summary then counts no push of that update."""
    step = {"loss": 1.0, "staleness": 0, "pulled_at": 0, "gap": None, "out": None,
            "pull": 0.1, "compute": 0.1, "push": 0.1, "examples": 32}  # fmt: skip
    steps = [step | {"time": 100.0 + n, "global_step": n, "local_step": n}
             for n in range(1, 6)]  # fmt: skip
    updates = [{"time": 100.0 + n, "global_step": n, "workers": w}
               for n, w in ((1, [0, 1]), (2, [1]), (5, [0, 1]))]  # fmt: skip
    final = [{"time": 106.0, "global_step": 5, "test_accuracy": 0.5, "test_loss": 1.0}]
    files = {"events-worker-0": steps, "events-worker-1": steps, "updates": updates,
             "evaluations": final}  # fmt: skip
    for name, lines in files.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    flags = {"workers": 2, "ps": 1, "batch_size": 32, "data": "digits"}
    tasks = [{"job": "worker", "index": k, "exit_code": 0, "restarts": 0} for k in (0, 1)]
    found = summarise(tmp_path, "Synchronous-SGD", flags, tasks)["tasks"]
    assert [(task["contributed"], task["dropped"]) for task in found] == [(2, 1), (3, 0)]


def test_a_log_says_why_its_task_was_restarted(tmp_path):
    """After half a line, which a killed task may leave, too."""
    program = "import os, sys; print(sys.argv[1], end='', flush=True); os.kill(os.getpid(), {})"
    task, group = Process("worker", 1, [], tmp_path / "log"), Group()
    try:
        for text, number in (("whole\n", 9), ("half", 11), ("end", 0)):
            task.command = [sys.executable, "-c", program.format(number), text]
            group.start(task, environment())
            _, code = group.exits.get(timeout=seconds(20))
            task.restarts += 1
            task.restart_reasons.append(describe_exit(code))
    finally:
        group.kill()
    assert (tmp_path / "log").read_text() == (
        "whole\nrun.sh: restart 1: this task was killed by SIGKILL\n"
        "half\nrun.sh: restart 2: this task was killed by SIGSEGV\nend"
    )


def test_a_task_started_by_hand_records_its_restarts(tmp_path, monkeypatch, capsys):
    """Nobody watched it, so no signal is known; one that ended by itself was not restarted."""
    ends = []
    monkeypatch.setattr(atexit, "register", ends.append)
    flags = Namespace(results=str(tmp_path))
    task = Namespace(job="worker", index=1, name="worker 1", hosts={"worker": ["a:1"]}, flags=flags)

    def start() -> dict:
        parts.leave(task, "HogWild")
        return json.loads((tmp_path / "task-worker-1.json").read_text())

    reason = "was killed, or its machine failed"
    for restarts in range(3):
        part = start()
        assert (part["restarts"], part["restart_reasons"]) == (restarts, [reason] * restarts)
        said = f"restart {restarts}: worker 1 {reason}\n" if restarts else ""
        assert capsys.readouterr().out == said
    ends[-1]()
    part = start()
    assert (part["restarts"], part["restart_reasons"]) == (0, [])


def test_the_table_is_not_cut_in_a_pipe(tmp_path, monkeypatch, capsys):
    """It is wider than the 80 columns that rich assumes there."""
    monkeypatch.setenv("COLUMNS", "80")
    task = {"restarts": 1, "exit_code": 0, "local_steps": 100_000, "examples": 3_200_000,
            "seconds": 2.0, "computing": 1.0, "communicating": 0.5, "waiting": 0.5,
            "dropped": 12_345}  # fmt: skip
    tasks = [{"job": "ps", "index": 0, "restarts": 0, "exit_code": None}]
    tasks += [task | {"job": "worker", "index": k} for k in (0, 1)]
    screen.table({
        "tasks": tasks, "global_step": 100_000, "examples": 6_400_000, "seconds": 2.0,
        "examples_per_second": 3.2e6, "staleness": {"mean": 0.0, "max": 0},
        "bytes_per_step": None, "test_accuracy": 0.5,
    }, tmp_path / "results", About())  # fmt: skip
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["task", "batches", "examples/s", "computing", "communicating", "waiting",
                        "exit", "dropped"]  # fmt: skip
    assert lines[1] == ["ps", "0", "?"]
    for k in (0, 1):
        assert lines[2 + k] == ["worker", str(k), "100000", "1,600,000", "50%", "25%", "25%",
                                "0", "(1", "restart)", "12345"]  # fmt: skip
    assert len(lines) == 6  # and the two below the table


def test_what_fills_the_network_around_the_steps_does_not_count(tmp_path):
    """A checkpoint just before the first step, and one just after the last."""
    count, notes = 0, []
    for k in range(30):
        now = 0.2 * k
        count += 10**7 if k in (5, 26) else 200  # between 0.8 and 1.0, and between 5.0 and 5.2
        notes.append({"time": now, "bytes": count})
    (tmp_path / "network.jsonl").write_text("".join(json.dumps(note) + "\n" for note in notes))
    assert summary._sent(tmp_path, [(0.95, 5.05), (0.0, 0.0)]) == pytest.approx(4100, rel=1e-6)
    short = summary._sent(tmp_path, [(1.25, 1.35)])  # no reading inside
    assert short == pytest.approx(100, rel=1e-6)
    assert summary._sent(tmp_path, [(0.0, 0.0)]) == 0
