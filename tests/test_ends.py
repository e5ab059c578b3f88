"""The end of a run and its folder: tasks lost at the last moment, leftovers, and what is kept."""

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from conftest import (
    ENDLESS,
    ROOT,
    copy_example,
    environment,
    eventually,
    processes,
    reach,
    task_pid,
)
from machine import seconds
from replays import EXACT, in_order, scheme_of

from common.launch import processes as launched
from common.launch.folder import Folder
from common.record import results
from common.record.trace import events_file

pytestmark = pytest.mark.slow("complete runs, some of them killed")

# A hook that kills the ps once, after the chief's loop and before its checkpoint is saved.
KILL = """
class Kill(tf.train.SessionRunHook):
    def end(self, session):
        import contextlib, pathlib, psutil
        mark = pathlib.Path(flags.results, "logs", "killed")
        if task.is_chief and not mark.exists():
            mark.touch()
            for process in psutil.process_iter():
                with contextlib.suppress(psutil.Error):  # it has just ended
                    command = " ".join(process.cmdline())
                    if "ps.py" in command and flags.results in command and "index 0" in command:
                        process.kill()


# 6. """
# Worker 1 is killed while it leaves: it has told ps 0, but not ps 1, which still waits for it.
LEAVE = "                gate.open(session)\n"
KILL_LEAVING = f"""{LEAVE}            if task.name == "worker 1":
                import os

                os.kill(os.getpid(), 9)
"""


def numbers(finished) -> list[int]:
    """The numbers of all updates in the events, in order."""
    workers = range(finished.summary["workers"])
    return sorted(event["global_step"] for k in workers for event in finished.events(k))


@pytest.mark.parametrize(("example", "worker"), [("HogWild", 0), ("Synchronous-SGD", 1)])
def test_a_ps_lost_after_the_loop_and_a_worker_after_the_results(run, tmp_path, example, worker):
    """The run repeats the updates since the last checkpoint. When the worker dies, the run is
    complete: nothing waits for the worker, or for the server that worker 1 has not left."""
    source = (ROOT / example / "worker.py").read_text()
    assert source.count("\n# 6. ") == source.count(") as sess:") == 1
    source = source.replace("\n# 6. ", KILL).replace(") as sess:", ", hooks=[Kill()]) as sess:")
    if worker == 0:
        source += "\nif task.is_chief:\n    import os\n\n    os.kill(os.getpid(), 9)\n"
    root = copy_example(example, tmp_path / "mine", worker=source)
    if worker == 1:
        together = root / "common" / "training" / "together.py"
        assert together.read_text().count(LEAVE) == 1
        together.write_text(together.read_text().replace(LEAVE, KILL_LEAVING))
    flags = ["--ps", 1 + worker, "--steps", 300, "--timeout", 10**6]
    finished = run(example, *flags, root=root)
    codes = {f"{t['job']} {t['index']}": t["exit_code"] for t in finished.summary["tasks"]}
    assert codes[f"worker {worker}"] == -9
    assert codes[f"worker {1 - worker}"] == 0
    assert worker == 0 or codes["ps 1"] == -9  # the launcher gives it 5 s
    for k in (0, 1):  # the screen shows each worker's last step
        number = finished.events(k)[-1]["global_step"]
        assert f"\n[worker {k}] step {number}  loss " in finished.output
    assert "ps 0 was killed by SIGKILL: restarted" in finished.output
    assert finished.output.count("restarted") == 1
    lost = r"^\[worker %d\] lost a parameter server: continues at update (\d+)$"
    (at,) = re.findall(lost % 0, finished.output, re.M)
    killed = (finished.results / "logs" / "killed").stat().st_mtime
    # Worker 1 need not notice if it has made its last step, and none is repeated.
    repeats = any(event["time"] > killed + 0.5 for event in finished.events(1))
    assert not repeats or re.search(lost % 1, finished.output, re.M)
    events = [event for k in (0, 1) for event in finished.events(k)]
    # A restart takes longer than 0.5 s, and steps in flight have ended by then.
    after = [event["global_step"] for event in events if event["time"] > killed + 0.5]
    assert set(after) >= set(range(int(at) + 1, 301))
    if example == "HogWild":  # each step is an update of its own
        assert len(after) == len(set(after))
    assert finished.summary["global_step"] == 300
    assert finished.summary["test_accuracy"] > 0.9


def test_a_checkpoint_folder_in_use(tmp_path, monkeypatch):
    """The new results folder is removed again."""
    monkeypatch.setattr(results, "made", [])
    options = SimpleNamespace(results=str(tmp_path / "new"), checkpoint_dir=str(tmp_path))
    lock = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with pytest.raises(SystemExit):
        Folder(options, "HogWild")
    os.close(lock)
    assert not (tmp_path / "new").exists()


@pytest.mark.slow("no run, but what one leaves")
def test_a_run_that_fails_before_its_first_step_leaves_no_folder(tmp_path, monkeypatch):
    """Unless its last line refers to a log. What was there before stays."""
    monkeypatch.setattr(results, "made", [])
    (tmp_path / "old").mkdir()
    options = SimpleNamespace(results=str(tmp_path / "new"), checkpoint_dir=str(tmp_path / "old"))
    folder = Folder(options, "HogWild")
    events_file(folder.path, 0).touch()
    events_file(folder.path, 1).write_text("{}\n")
    folder.discard("error: the loss of worker 1 is NaN")
    assert folder.path.exists()
    events_file(folder.path, 1).write_text("")
    folder.discard("error: waited 9 s for worker 1: start it, or see its log")
    assert folder.path.exists()
    folder.discard("error: the checkpoint is damaged")
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


def test_a_folder_is_used_again(start, run, tmp_path):
    """An interrupted run continues in its folder; what is there stays, and is shown only once.
    The folder is refused while the run uses it. A killed launcher leaves no process and no
    temporary file."""
    (temporary := tmp_path / "temporary").mkdir()
    process, where = start("HogWild", "--steps", ENDLESS, TMPDIR=str(temporary))
    reach(where, 2000)
    second = run("HogWild", "--steps", 20, "--results", where, ok=False)
    assert second.code == 2
    assert second.output.splitlines()[-1].startswith(f"error: another run is using {where}: wait")
    os.kill(task_pid(where, "worker", 0), signal.SIGKILL)  # a restarted chief finds what is there
    reach(where, 4000, worker=1)
    assert any(temporary.rglob("*.py"))  # TensorFlow's, for functions that it has converted
    process.kill()
    process.communicate()
    assert eventually(lambda: not processes(), 5)
    assert not any(temporary.iterdir())
    for path in where.glob("*.jsonl"):  # as if each task was killed while it wrote
        whole = path.read_text().rpartition("\n")[0] + "\n"
        path.write_text(whole + '{"time": 17')
    command = [sys.executable, "-m", "common.commands.collect", where]
    collected = subprocess.run(command, cwd=ROOT, text=True, env=environment(), capture_output=True)
    assert re.search(r"^worker 1 .* \?$", collected.stdout, re.M), collected.stderr
    half = json.loads((where / "summary.json").read_text())
    assert [t["job"] for t in half["tasks"]] == ["ps", "worker", "worker"]
    assert half["flags"]["steps"] == ENDLESS and half["scheme"] == "HogWild"
    before = [events_file(where, k).read_text().rpartition("\n")[0] for k in (0, 1)]
    assert len(list((where / "checkpoints").glob("*.index"))) == 2
    last = max(json.loads(text.splitlines()[-1])["global_step"] for text in before)

    goal = last + 1000
    finished = run("HogWild", "--steps", goal, "--results", where)
    assert finished.summary["global_step"] == goal
    (at,) = re.findall(
        rf"^\[worker 0\] continues at update (\d+) of {goal}$", finished.output, re.M
    )
    assert "[worker 0] step 1 " not in finished.output
    for k in (0, 1):
        assert events_file(where, k).read_text().startswith(before[k])
    assert len(set(numbers(finished))) > 0.9 * goal  # SIGKILL loses what is not written yet
    assert finished.summary["examples"] == 32 * len(numbers(finished))
    launches = [json.loads(text) for text in (where / "launches.jsonl").read_text().splitlines()]
    both = [event for k in (0, 1) for event in finished.events(k)]
    resumed = [e["global_step"] for e in both if e["time"] > launches[1]["time"]]
    assert sorted(resumed) == list(range(int(at) + 1, goal + 1))
    times = [event["time"] for event in both]
    pause = min(t for t in times if t > launches[1]["time"])
    pause -= max(t for t in times if t < launches[1]["time"])
    assert finished.summary["seconds"] < max(times) - min(times) - 0.9 * pause + 0.1
    assert len(list((where / "checkpoints").glob("*.index"))) == 2

    before = [events_file(where, k).read_text() for k in (0, 1)]
    again = run("HogWild", "--steps", goal, "--results", where, "--workers", 1)
    assert "updates are already done" in again.output
    assert again.summary["global_step"] == goal
    assert [events_file(where, k).read_text() for k in (0, 1)] == before
    assert again.summary["examples_per_second"] > 0


@pytest.mark.slow("no run, but a folder of somebody else's")
def test_other_files_are_safe(run, tmp_path):
    mine = tmp_path / "mine"
    (mine / "logs").mkdir(parents=True)
    (mine / "summary.json").write_text("precious")
    (mine / "logs" / "precious.log").write_text("precious")
    finished = run("HogWild", "--steps", 20, "--results", mine, ok=False)
    assert finished.code == 2
    (line,) = finished.output.splitlines()
    assert line == (f"error: --results {mine} already holds summary.json, but no run of "
                    "run.sh with a checkpoint to continue from: use another folder")  # fmt: skip
    assert {path.name for path in mine.rglob("*.*")} == {"summary.json", "precious.log"}
    assert (mine / "summary.json").read_text() == "precious"


def test_a_suspended_ps_and_a_worker_that_dies_too_often(start, tmp_path):
    """The screen names the ps, and at the end the worker. In this copy, 2 s are long enough."""
    root = copy_example("HogWild", tmp_path / "mine")
    path = root / "common" / "launch" / "processes.py"
    source = path.read_text()
    assert source.count("_stopped_at + 10:") == 1
    path.write_text(source.replace("_stopped_at + 10:", "_stopped_at + 2:"))
    flags = ["--workers", 1, "--steps", ENDLESS, "--max_restarts", 0]
    process, where = start("HogWild", *flags, root=root)
    reach(where, 200)
    pid, shown = task_pid(where, "ps", 0), []
    reader = threading.Thread(target=lambda: shown.extend(iter(process.stdout.readline, "")))
    reader.start()
    os.kill(pid, signal.SIGSTOP)
    wanted = f"ps 0 has been suspended for 10 s: resume it with kill -CONT {pid}\n"
    assert eventually(lambda: wanted in shown, 10)
    os.kill(pid, signal.SIGCONT)
    reach(where, json.loads(events_file(where, 0).read_text().splitlines()[-1])["global_step"] + 10)
    os.kill(task_pid(where, "worker", 0), signal.SIGKILL)
    process.wait(timeout=seconds(30))
    reader.join()
    assert process.returncode == 1
    assert shown[-1] == (
        "error: worker 0 was killed by SIGKILL, and --max_restarts 0 allows no more restarts\n"
    )
    assert "[worker 0] step" in "".join(shown).partition("worker-0.log ends with")[2]
    assert not (where / "summary.json").exists()
    assert sum("has been suspended" in line for line in shown) == 1


@pytest.mark.slow("no run, but the same message")
def test_a_task_stands_still_once_it_is_suspended_for_10_s(monkeypatch, tmp_path):
    task = launched.Process("ps", 0, [], tmp_path / "log")
    task.popen = SimpleNamespace(pid=0)
    still = []
    for now, status in [(0, "stopped"), (9.9, "stopped"), (10.1, "stopped"), (30, "stopped"),
                        (31, "sleeping"), (32, "stopped"), (41, "stopped"),
                        (42.1, "stopped")]:  # fmt: skip
        one = SimpleNamespace(status=lambda status=status: status)
        monkeypatch.setattr(launched.psutil, "Process", lambda pid, one=one: one)
        clock = SimpleNamespace(monotonic=lambda now=now: now)
        monkeypatch.setattr(launched, "time", clock)
        if task.stands_still():
            still.append(now)
    assert still == [10.1, 42.1]


@pytest.mark.usefixtures("two_cores")
def test_checkpoints_hold_the_parameters_of_the_update_that_they_name(start):
    """With one ps that has one thread: exactly those, as a replay of the run shows. In the end, no
    task outlives the launcher, even without the guard."""
    flags = ["--model", "linear", "--batch_size", 0, "--learning_rate", 0.3]
    flags += ["--steps", ENDLESS, "--delay", "0:0.005,1:0.005"]  # fewer to replay
    process, where = start("HogWild", *flags)
    found = {}

    def saved_midway():
        for path in (where / "checkpoints").glob("model.ckpt-*.index"):
            number = int(path.stem.partition("-")[2])
            if number not in found:
                saved = tf.train.load_checkpoint(str(path.with_suffix("")))
                assert saved.get_tensor("global_step") == number
                names = "weights_0", "biases_0"
                found[number] = np.concatenate([saved.get_tensor(name).ravel() for name in names])
        return len(found) >= 3 and max(found) >= 50

    assert eventually(saved_midway, 60)
    last = max(found)
    made = [(event, k) for k in (0, 1) for event in reach(where, last, k)]
    (guard,) = [pid for pid, command in processes().items() if "os.killpg(0, 9)" in command]
    os.kill(guard, signal.SIGKILL)
    process.kill()
    process.wait()
    assert eventually(lambda: not processes(), 5)
    events = sorted((event["global_step"], event["pulled_at"], k) for event, k in made)[:last]
    scheme = scheme_of("HogWild", {"learning_rate": 0.3, "workers": 2})
    history = in_order(scheme, events)
    assert not found.pop(0).any()
    for number, measured in sorted(found.items()):  # the first may be of an early update
        largest = np.abs(history[number]).max()
        assert np.abs(measured - history[number]).max() < EXACT * largest
    assert largest > 0.1  # it has learnt, so the comparison means something
