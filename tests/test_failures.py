"""What happens when something goes wrong: every failure is provoked for real.

`test_faults.py` kills each task of HogWild; several other examples' tests kill some of theirs.
"""

import os
import re
import shutil
import signal
import subprocess
import sys

import pytest
from conftest import (
    ENDLESS,
    ROOT,
    copy_example,
    environment,
    eventually,
    processes,
    reach,
)
from machine import seconds

pytestmark = pytest.mark.slow("runs that fail or are killed")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_stopping_the_launcher(start, tmp_path, how):
    """Within 5 s no process of the run is alive, and no temporary file is left. The same after
    SIGKILL: `test_ends.py`."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    flags = ["--workers", 1, "--steps", ENDLESS]
    process, where = start("HogWild", *flags, TMPDIR=str(temporary))
    reach(where, 100)
    assert any(temporary.rglob("*.py"))  # TensorFlow's, for functions that it has converted
    pids = processes()
    assert all(sum(s in c for c in pids.values()) == 1 for s in ("ps.py", "worker.py"))
    os.kill(process.pid, how)
    assert eventually(lambda: not processes(), 5)
    output, _ = process.communicate(timeout=seconds(5))
    assert process.returncode == 128 + how
    assert f"stopped by {how.name}; nothing is left running" in output
    assert not any(temporary.iterdir())


def test_killed_while_tasks_are_importing(start):
    process, _ = start("HogWild", "--steps", ENDLESS)
    assert eventually(lambda: sum("worker.py" in c for c in processes().values()) == 2, 10)
    os.kill(process.pid, signal.SIGKILL)
    assert eventually(lambda: not processes(), 5)


def test_a_script_that_raises(run, tmp_path):
    """The screen ends with the traceback."""
    source = (ROOT / "HogWild" / "worker.py").read_text()
    broken = source.replace("        sess.run(step)", "        sess.run(step + 'one')")
    assert broken != source
    root = copy_example("HogWild", tmp_path / "mine", worker=broken)
    finished = run("HogWild", "--workers", 1, "--steps", 50, root=root, ok=False)
    assert finished.code == 1
    lines = finished.output.rstrip().splitlines()
    assert lines[-1].startswith("TypeError: ")
    assert "Traceback (most recent call last):" in lines
    assert "sess.run(step + 'one')" in finished.output
    (log,) = re.findall(
        r"^error: worker 0 ended with exit code 1; (\S+) ends with:$", finished.output, re.M
    )
    assert (finished.results.parent / log).is_file()
    assert not (finished.results / "summary.json").exists()


def test_a_ps_that_never_comes_up(run, tmp_path):
    root = copy_example("HogWild", tmp_path / "mine", ps="import signal\nsignal.pause()\n")
    limit = round(seconds(3))
    finished = run("HogWild", "--workers", 1, "--timeout", limit, root=root, ok=False)
    assert finished.code == 1
    last = finished.output.rstrip().splitlines()[-1]
    assert last.startswith(f"error: timed out after {limit} s (--timeout): ps 0 does not answer at")
    assert (finished.results.parent / last.rpartition("; see ")[2]).is_file()


def test_by_hand_a_missing_worker_is_named(tmp_path):
    """In two clusters at the same time. A missing ps: `test_collect.py`."""
    from common.launch import network

    every_port, limit = iter(network.free_ports(6, private=False)), str(round(seconds(3)))

    def tasks(missing) -> list[subprocess.Popen]:
        ports = [next(every_port) for _ in range(3)]
        hosts = ["--ps_hosts", f"localhost:{ports[0]}"]
        hosts += ["--worker_hosts", f"localhost:{ports[1]},localhost:{ports[2]}"]
        scripts = [("ps.py", 0), ("worker.py", 1 if missing == "worker 0" else 0)]
        return [
            subprocess.Popen(
                [sys.executable, ROOT / "HogWild" / script, "--task_index", str(index), *hosts,
                 "--timeout", limit, "--results", str(tmp_path / f"{missing}-{script}")],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment(),
            )
            for script, index in scripts
        ]  # fmt: skip

    clusters = {missing: tasks(missing) for missing in ("worker 1", "worker 0")}
    for missing, (ps, worker) in clusters.items():
        output, _ = worker.communicate(timeout=seconds(60))
        ps.kill()
        ps.communicate()
        assert worker.returncode == 2
        errors = [line for line in output.splitlines() if line.startswith("error:")]
        assert len(errors) == 1
        assert missing in errors[0]
        assert f"{limit} s" in errors[0]


def test_nan_stops_and_says_what_to_try(run):
    finished = run("HogWild", "--learning_rate", 1e30, "--workers", 1, ok=False)
    assert finished.code == 2
    last = finished.output.rstrip().splitlines()[-1]
    assert last.startswith("error: the loss of worker")
    assert "smaller --learning_rate than 1e+30" in last
    assert not (finished.results / "parameters.npz").exists()


def test_nan_is_seen_in_the_shortest_run(run):
    """Hooks check every 0.1 s; this run ends sooner."""
    finished = run("Non-Distributed-Setup", "--steps", 10, "--learning_rate", 1e30, ok=False)
    assert finished.code == 2
    last = finished.output.rstrip().splitlines()[-1]
    assert "is NaN or infinite: try a smaller --learning_rate than 1e+30" in last
    assert not (finished.results / "parameters.npz").exists()
    assert not (finished.results / "summary.json").exists()


def test_threads_that_run_out_of_time(run):
    limit = round(seconds(3))
    finished = run("HogWild", "--threads", 2, "--steps", ENDLESS, "--timeout", limit, ok=False)
    assert finished.code == 1
    last = finished.output.rstrip().splitlines()[-1]
    text = f"error: timed out after {limit} s (--timeout): the run is not finished; give it"
    assert last.startswith(text)


def test_a_checkpoint_of_another_model(run, default_run, tmp_path):
    checkpoints = tmp_path / "checkpoints"
    shutil.copytree(default_run("Non-Distributed-Setup").results / "checkpoints", checkpoints)
    before = sorted(path.name for path in checkpoints.iterdir())
    finished = run(
        "Non-Distributed-Setup", "--hidden", 64, "--checkpoint_dir", checkpoints, ok=False
    )
    assert finished.code == 2
    last = finished.output.rstrip().splitlines()[-1]
    assert re.match(r"error: the checkpoint .* is from another model or optimizer "
                    r"\(weights_0 is \[64, 128\] there, \[64, 64\] here\): .* --checkpoint_dir$",
                    last)  # fmt: skip
    assert sorted(path.name for path in checkpoints.iterdir()) == before
    assert not finished.results.exists()
