"""In-graph replication (one client): against Synchronous-SGD and NumPy; transfers; failures."""

import collections
import json
import re

import numpy as np
import pytest
from conftest import ROOT, Finished, copy_example, kill_and_see_it_back, wait_for_checkpoint
from machine import seconds
from replays import EXACT, distance, flat, in_rounds, replayed, scheme_of
from test_documented import assert_the_cost_of_a_client
from test_transfers import IMPORT, LOOP, PROBE, SAY

from common.told.example import example_of

EXAMPLE = "In-Graph-Replication"
EXAMPLES = 1437  # of the digits, for training
NUMBERS_EACH = 64  # in one example
WHOLE = ("--model", "linear", "--batch_size", 0, "--learning_rate", 0.3)  # nothing is random


def client(finished) -> dict:
    return json.loads((finished.results / "client.json").read_text())


def assert_cost(finished, batches: int) -> None:
    """The screen shows what `client.json` says, and all data went through the client."""
    found, n = client(finished), finished.summary["workers"]
    assert found["replicas"] == n
    assert 0 < found["steps"] < finished.summary["global_step"]  # counted after the first step
    assert found["cpu_per_step"] > 0 and found["build_seconds"] > 0
    if found["sent_per_step"] is not None:
        data = EXAMPLES * (NUMBERS_EACH * 4 + 8) * batches / n  # x float32, labels int64
        unacknowledged = 2 / found["steps"]  # a packet counts once the other side has confirmed it
        assert 1 - unacknowledged < found["sent_per_step"] / data < 1.5
        assert found["received_per_step"] < data / 2  # no gradient, no parameters
    (line,) = re.findall(r"^client: (.*)$", finished.output, re.M)
    assert f"{1e3 * found['cpu_per_step']:.2f} ms of CPU" in line
    assert f"graph of {found['nodes']:,} nodes" in line
    assert line in (finished.results / "logs" / "chief-0.log").read_text()


def probed(mode: str, to):
    """A copy whose chief prints what its second step sends."""
    source = (ROOT / EXAMPLE / f"{mode}.py").read_text()
    loop = LOOP if mode == "chief" else "    threads = ["
    assert source.count(loop) == 1 and source.count(IMPORT) == 1
    probe = PROBE.replace("sess.run(step", "sess.run(replicas[0].step")
    source = source.replace(IMPORT, IMPORT + SAY).replace(loop, probe + loop)
    return copy_example(EXAMPLE, to, **{mode: source})


def assert_only_batches_leave_the_chief(finished, replicas) -> None:
    """Batches from the chief, parameters from the ps, gradients to the ps; nothing to the chief."""
    log = (finished.results / "logs" / "chief-0.log").read_text()
    found = collections.Counter(
        tuple(job + task for job, task in re.findall(r"/job:(\w+)/replica:0/task:(\d+)", line))
        for line in re.findall(r"^transfer (.*)$", log, re.M)
    )
    expected = {}
    for k in replicas:
        worker = f"worker{k}"
        expected |= {("chief0", worker): 2, ("ps0", worker): 1, (worker, "ps0"): 1}  # x and labels
    assert found == expected


def averaged(finished) -> np.ndarray:
    """The parameters after all updates, by the formula of Synchronous-SGD."""
    flags = finished.summary["flags"]
    scheme = scheme_of("Synchronous-SGD", flags)
    return in_rounds(scheme, [list(range(flags["workers"]))] * flags["steps"])[-1]


def test_the_average_of_three_is_synchronous_sgd(run, tmp_path):
    """By its formula, to which test_replay.py compares Synchronous-SGD too. One replica is slow:
    all wait for it. The results are complete."""
    delay, n = seconds(0.02), 3
    mine = run(EXAMPLE, *WHOLE, "--steps", 60, "--workers", n, "--delay", f"1:{delay}",
               root=probed("chief", tmp_path / "mine"))  # fmt: skip
    assert distance(flat(mine), averaged(mine)) < EXACT
    assert_cost(mine, batches=n)
    assert mine.summary["staleness"]["max"] == 0
    jobs = [(task["job"], task["index"]) for task in mine.summary["tasks"]]
    assert jobs == [("ps", 0), *(("worker", k) for k in range(n)), ("chief", 0)]
    assert mine.summary["examples"] == 60 * EXAMPLES
    for k in range(n):
        events = mine.events(k)
        assert [event["global_step"] for event in events] == list(range(1, 61))
        assert all(min(event[key] for key in ("pull", "compute", "push")) > 0 for event in events)
        assert all(event["pull"] + event["compute"] + event["push"] >= delay for event in events)
    # Its batch arrives late. The chief begins to draw it just before the worker begins its step.
    assert all(event["pull"] >= 0.5 * delay for event in mine.events(1))
    assert_only_batches_leave_the_chief(mine, range(n))


@pytest.mark.usefixtures("two_cores")
@pytest.mark.slow("a separate run")
def test_threads_match_their_formula(run, tmp_path):
    root = probed("threads", tmp_path / "mine")
    finished = run(
        EXAMPLE, *WHOLE, "--steps", 60, "--workers", 3, "--mode", "threads", root=root
    )  # fmt: skip
    scheme = scheme_of("HogWild", finished.summary["flags"])
    assert distance(flat(finished), replayed(finished, scheme)) < EXACT
    assert finished.summary["staleness"]["max"] > 0  # otherwise staleness was not tested
    assert_cost(finished, batches=1)
    assert_only_batches_leave_the_chief(finished, [0])


@pytest.mark.slow("waits until killed tasks are back")
@pytest.mark.parametrize(
    ("mode", "steps", "tasks"),
    [("averaged", 201, ["ps 0"]), ("threads", 600, ["worker 1", "chief 0"])],
)
def test_killed_tasks_come_back(start, mode, steps, tasks):
    """Nothing restarts at 0, and the run completes. The averaged one makes several steps in a call,
    and ends with exactly the parameters of its formula, although the ps was lost."""
    delay = seconds(0.03)  # long enough for a checkpoint, also on a slow disk
    flags = ["--mode", mode, "--steps", steps, "--delay", f"0:{delay},1:{delay}"]
    flags += [*WHOLE, "--steps_per_execution", 4] if mode == "averaged" else []
    process, where = start(EXAMPLE, *flags, "--timeout", seconds(600))
    wait_for_checkpoint(where, 30)
    killed = [kill_and_see_it_back(where, job, int(k)) for job, k in map(str.split, tasks)]
    output, _ = process.communicate(timeout=seconds(120))
    assert process.returncode == 0, output
    finished = Finished(process.returncode, output, where)
    summary = finished.summary
    restarts = {f"{task['job']} {task['index']}": task["restarts"] for task in summary["tasks"]}
    assert restarts == {name: int(name in tasks) for name in restarts}
    assert summary["global_step"] == steps
    if mode == "averaged":
        assert distance(flat(finished), averaged(finished)) < EXACT
    else:
        assert summary["test_accuracy"] > 0.95
    events = [event for k in (0, 1) for event in finished.events(k)]
    for when in killed:
        first = min(e["global_step"] for e in events if e["time"] - e["pull"] > when + seconds(0.5))
        assert first > 20
    assert "client: " in output
    assert_the_cost_of_a_client(finished)


def test_the_modes_have_the_same_defaults():
    """Each script has only its own choice of `--mode`; chief.py has all."""
    (chief, _), (threads, _) = (
        example_of(ROOT / EXAMPLE / f"{s}.py") for s in ("chief", "threads")
    )
    assert chief == threads | {"mode": ("averaged", "threads")}
