"""`python -m common.commands.collect`: the results of a run from what its tasks wrote.

For runs of `run.sh`, `test_documented.py` and `test_examples.py` call `rebuilt.assert_the_same`.
"""

import json
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT, environment
from machine import seconds
from rebuilt import collect
from test_examples import SUMMARY
from test_flags import assert_one_sentence

from common.launch import network
from common.record import trace
from common.record.summary import summarise


def by_hand(tmp_path, *tasks):
    """Runs HogWild's tasks by hand, each (job, index, folder or None); returns their output."""
    ports = network.free_ports(3, private=False)
    hosts = ["--ps_hosts", f"localhost:{ports[0]}"]
    hosts += ["--worker_hosts", f"localhost:{ports[1]},localhost:{ports[2]}", "--steps", "60"]
    env = environment()
    env.pop("TASK_RESTARTS", None)
    started = []
    for job, index, folder in tasks:
        command = [sys.executable, ROOT / "HogWild" / f"{job}.py", *hosts, "--task_index", index]
        command += ["--results", folder] if folder else []
        command += ["--timeout", seconds(60), "--delay", "0:0.01,1:0.01"]
        started.append(
            subprocess.Popen(
                [*map(str, command)],
                stdout=subprocess.PIPE,
                text=True,
                env=env,
                stderr=subprocess.STDOUT,
            )
        )
    outputs = [process.communicate(timeout=seconds(90))[0] for process in started]
    assert [process.returncode for process in started] == [0] * len(started), "\n".join(outputs)
    return outputs


def test_parts_of_a_run_by_hand(tmp_path):
    ps, first, second = (tmp_path / name for name in ("ps", "first", "second"))
    outputs = by_hand(tmp_path, ("ps", 0, ps), ("worker", 0, first), ("worker", 1, second))
    for output, folder in zip(outputs, (ps, first, second)):
        says = f"are in {folder}; to merge a run's results: .venv/bin/python -m common."
        assert says in output.splitlines()[-1]
    # What the launcher would make of the same files, in one folder.
    together = tmp_path / "together"
    shutil.copytree(first, together)
    shutil.copy(trace.events_file(second, 1), together)
    flags = json.loads((first / "task-worker-0.json").read_text())["flags"]
    assert flags["results"] == str(first) and flags["workers"] == 2
    tasks = [{"job": job, "index": k, "exit_code": 0, "restarts": 0}
             for job, k in (("ps", 0), ("worker", 0), ("worker", 1))]  # fmt: skip
    expected = summarise(together, "HogWild", flags, tasks)

    done = collect(second, ps, first)
    assert (done.returncode, done.stderr) == (0, "")
    summary = json.loads((first / "summary.json").read_text())
    assert summary == json.loads(json.dumps(expected))
    assert summary.keys() == SUMMARY.keys()
    assert sum(task["local_steps"] for task in summary["tasks"]) == 60 == summary["global_step"]
    assert (first / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert "global step 60: 1,920 examples" in done.stdout
    assert not list(first.glob(".*"))

    # Now the chief's folder is enough. Without the part of the ps, nobody knows how it ended.
    again = collect(first)
    assert (again.returncode, again.stdout) == (0, done.stdout)
    assert json.loads((first / "summary.json").read_text()) == summary
    (first / "task-ps-0.json").unlink()
    assert "ps 0 " in (unknown := collect(first)).stdout and "?" in unknown.stdout


def part(folder, job="worker", index=0, **changes):
    """A part as a task writes it."""
    folder.mkdir(exist_ok=True)
    hosts = {"ps": ["a:1"], "worker": ["b:1", "c:1"]}
    made = {
        "scheme": "HogWild", "job": job, "index": index, "hosts": hosts,
        "flags": {"workers": 2, "ps": 1, "seed": 0, "results": str(folder)}, "started": 10.0,
        "ended": 20.0, "exit_code": 0,
    } | changes  # fmt: skip
    (folder / f"task-{job}-{index}.json").write_text(json.dumps(made))
    return folder


def refused(*folders) -> str:
    done = collect(*folders)
    assert (done.returncode, done.stdout) == (2, "")
    assert_one_sentence(done.stderr)
    return done.stderr


def test_folders_that_do_not_fit(tmp_path):
    a, b, empty = part(tmp_path / "a"), part(tmp_path / "b", index=1), tmp_path / "empty"
    empty.mkdir()
    assert f"{empty} holds no part of a run" in refused(empty)
    assert f"{empty} holds no part of a run" in refused(a, empty)
    assert "the part of worker 1 is missing" in refused(a)
    assert "the part of worker 0 is missing" in refused(b)
    assert f"{a} has no parameters.npz, since worker 0 has not finished" in refused(a, b)
    assert "required: FOLDER" in refused()
    assert "unknown argument --all" in refused(a, "--all")
    again = part(tmp_path / "again", started=11.0)
    assert f"{a} and {again} both hold the part of worker 0" in refused(a, b, again)
    (empty / "task-ps-0.json").write_text('{"job": "ps"}')
    assert "task-ps-0.json is not a valid task file" in refused(a, b, empty)
    (empty / "task-ps-0.json").unlink()
    (empty / "summary.json").write_text("")
    assert f"{empty} holds no part of a run" in refused(empty)


OTHERS = {
    "a later one": {"started": 30.0, "ended": 40.0},
    "an earlier one": {"started": 1.0, "ended": 2.0},
    "another scheme": {"scheme": "AGN"},
    "another seed": {"flags": {"workers": 2, "ps": 1, "seed": 1}},
    "other machines": {"hosts": {"ps": ["x:1"], "worker": ["b:1", "c:1"]}},
}


@pytest.mark.parametrize("other", OTHERS)
def test_parts_of_two_runs(tmp_path, other):
    a, b = part(tmp_path / "a"), part(tmp_path / "b", index=1, **OTHERS[other])
    assert f"{a} and {b} hold parts of different runs" in refused(a, b)


def test_a_task_that_fails_says_how_it_ended(tmp_path):
    command = [sys.executable, ROOT / "HogWild/worker.py", "--results", tmp_path, "--timeout", 0.1]
    port, mine = network.free_ports(2, private=False)  # nothing listens there
    env = environment()
    env.pop("TASK_RESTARTS", None)
    hosts = ["--ps_hosts", f"localhost:{port}", "--worker_hosts", f"localhost:{mine}"]
    done = subprocess.run([*map(str, command), *hosts], env=env, capture_output=True, text=True,
                          timeout=seconds(60))  # fmt: skip
    assert done.returncode == 2
    (line,) = [text for text in done.stderr.splitlines() if text.startswith("error:")]
    assert f"ps 0 did not answer at localhost:{port} within 0.1 s" in line
    left = json.loads((tmp_path / "task-worker-0.json").read_text())
    assert left["exit_code"] == 2
    assert left["started"] < left["ended"]


def test_a_folder_elsewhere():
    done = collect("gs://bucket/run")
    assert (done.returncode, done.stdout) == (2, "")
    assert_one_sentence(done.stderr, "'gs://bucket/run'", "on this machine", "mount")
