"""The end of a run and its folder: tasks lost at the last moment, leftovers, and what is kept."""

import json
import os
import re
import signal
import threading

import formulas
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from conftest import (
    ENDLESS,
    ROOT,
    copy_example,
    eventually,
    processes,
    reach,
    task_pid,
)
from machine import seconds
from test_replay import EXACT, distance

from common.training.results import events_file

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


def numbers(finished) -> list[int]:
    """The numbers of all updates in the events, in order."""
    workers = range(finished.summary["workers"])
    return sorted(event["global_step"] for k in workers for event in finished.events(k))


@pytest.mark.parametrize("worker", [0, 1])
def test_a_task_that_dies_after_the_results_are_written(run, tmp_path, worker):
    """The run is complete: nothing waits for the task, or for a server that it has not left."""
    source = (ROOT / "HogWild" / "worker.py").read_text()
    source += f"\nif task.index == {worker}:\n    import os\n\n    os.kill(os.getpid(), 9)\n"
    root = copy_example("HogWild", tmp_path / "mine", worker=source)
    finished = run("HogWild", "--steps", 100, root=root)
    codes = {f"{t['job']} {t['index']}": t["exit_code"] for t in finished.summary["tasks"]}
    assert codes[f"worker {worker}"] == -9
    assert codes[f"worker {1 - worker}"] == 0
    assert "restarted" not in finished.output
    assert numbers(finished) == list(range(1, 101))


@pytest.mark.parametrize("example", ["HogWild", "Synchronous-SGD"])
def test_a_ps_lost_after_the_loop(run, tmp_path, example):
    """The run repeats the updates since the last checkpoint."""
    source = (ROOT / example / "worker.py").read_text()
    assert source.count("\n# 6. ") == source.count(") as sess:") == 1
    source = source.replace("\n# 6. ", KILL).replace(") as sess:", ", hooks=[Kill()]) as sess:")
    root = copy_example(example, tmp_path / "mine", worker=source)
    finished = run(example, "--ps", 2, "--steps", 300, root=root)
    assert "ps 0 was killed by SIGKILL: restarted" in finished.output
    (at,) = re.findall(
        r"^\[worker 0\] lost a parameter server: continues at update (\d+)$", finished.output, re.M
    )
    assert set(numbers(finished)) >= set(range(int(at) + 1, 301))
    assert finished.summary["global_step"] == 300
    assert finished.summary["test_accuracy"] > 0.9


def test_a_folder_is_used_again(start, run):
    """An interrupted run continues in its folder; what is there stays, and is shown only once.
    The folder is refused while the run uses it."""
    process, where = start("HogWild", "--steps", ENDLESS)
    reach(where, 2000)
    second = run("HogWild", "--steps", 20, "--results", where, ok=False)
    assert second.code == 2
    assert second.output.splitlines()[-1].startswith(f"error: another run is using {where}: wait")
    os.kill(task_pid(where, "worker", 0), signal.SIGKILL)  # a restarted chief finds what is there
    reach(where, 4000, worker=1)
    process.kill()
    process.communicate()
    assert eventually(lambda: not processes(), 5)
    for path in where.glob("*.jsonl"):  # as if each task was killed while it wrote
        whole = path.read_text().rpartition("\n")[0] + "\n"
        path.write_text(whole + '{"time": 17')
    before = [events_file(where, k).read_text().rpartition("\n")[0] for k in (0, 1)]
    assert len(list((where / "checkpoints").glob("*.index"))) == 2
    last = max(json.loads(text.splitlines()[-1])["global_step"] for text in before)

    goal = last + 1000
    finished = run("HogWild", "--steps", goal, "--results", where)
    assert finished.summary["global_step"] == goal
    assert re.search(rf"^\[worker 0\] continues at update \d+ of {goal}$", finished.output, re.M)
    assert "[worker 0] step 1 " not in finished.output
    for k in (0, 1):
        assert events_file(where, k).read_text().startswith(before[k])
    assert len(set(numbers(finished))) > 0.9 * goal  # SIGKILL loses what is not written yet
    assert finished.summary["examples"] == 32 * len(numbers(finished))
    launches = [json.loads(text) for text in (where / "launches.jsonl").read_text().splitlines()]
    times = [event["time"] for k in (0, 1) for event in finished.events(k)]
    pause = min(t for t in times if t > launches[1]["time"])
    pause -= max(t for t in times if t < launches[1]["time"])
    assert finished.summary["seconds"] < max(times) - min(times) - 0.9 * pause + 0.1
    assert len(list((where / "checkpoints").glob("*.index"))) == 2

    again = run("HogWild", "--steps", goal, "--results", where)
    assert "updates are already done" in again.output
    assert again.summary["global_step"] == goal
    assert numbers(again) == numbers(finished)
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


def test_a_suspended_ps_and_a_killed_guard(start):
    """The screen names the ps. No task outlives the launcher, even without the guard."""
    process, where = start("HogWild", "--steps", ENDLESS)
    reach(where, 100)
    pid, shown = task_pid(where, "ps", 0), []
    reader = threading.Thread(target=lambda: shown.extend(iter(process.stdout.readline, "")))
    reader.start()
    os.kill(pid, signal.SIGSTOP)
    wanted = f"ps 0 has been suspended for 10 s: resume it with kill -CONT {pid}\n"
    assert eventually(lambda: wanted in shown, 20 / seconds(1) + 10)
    os.kill(pid, signal.SIGCONT)
    reach(where, json.loads(events_file(where, 0).read_text().splitlines()[-1])["global_step"] + 10)
    (guard,) = [pid for pid, command in processes().items() if "os.killpg(0, 9)" in command]
    os.kill(guard, signal.SIGKILL)
    process.kill()
    process.wait()
    assert eventually(lambda: not processes(), 5)
    reader.join()
    assert sum("has been suspended" in line for line in shown) == 1


def test_checkpoints_hold_the_parameters_of_the_update_that_they_name(start):
    """With one ps that has one thread: exactly those, as a replay of the run shows."""
    flags = ["--model", "linear", "--batch_size", 0, "--learning_rate", 0.3, "--workers", 3]
    flags += ["--steps", 3000, "--delay", "0:0.002,1:0.002,2:0.002"]  # so that it saves midway
    process, where = start("HogWild", *flags)
    found = {}

    def over():
        for path in (where / "checkpoints").glob("model.ckpt-*.index"):
            number = int(path.stem.partition("-")[2])
            if number not in found:
                saved = tf.train.load_checkpoint(str(path.with_suffix("")))
                assert saved.get_tensor("global_step") == number
                names = "weights_0", "biases_0"
                found[number] = np.concatenate([saved.get_tensor(name).ravel() for name in names])
        return process.poll() is not None

    assert eventually(over, 120)
    assert process.returncode == 0
    events = [(e["global_step"], e["pulled_at"], k) for k in range(3) for e in reach(where, 1, k)]
    summary = json.loads((where / "summary.json").read_text())
    scheme = formulas.of("HogWild").formula(summary["flags"], np.zeros(650))
    history = [np.zeros(650)]
    for number, pulled_at, k in sorted(events):
        pulled = history[pulled_at]
        push = scheme.push(k, pulled)
        history.append(scheme.update(history[-1], push, number - 1 - pulled_at, pulled))
    assert len(history) == 3001
    assert len(found) >= 3
    assert not found.pop(0).any()
    for number, measured in found.items():
        assert distance(measured, history[number]) < EXACT
