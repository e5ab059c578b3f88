"""`Several-Machines/slurm.sbatch`: runs on the nodes of a real Slurm."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import slurm_cluster
from conftest import (
    ENDLESS,
    ROOT,
    copy_example,
    eventually,
    kill_and_see_it_back,
    processes,
    reach,
)
from machine import seconds
from test_flags import assert_one_sentence
from watch import Unavailable

pytestmark = pytest.mark.slow("starts a Slurm cluster, and runs on it")
FOLDER = "Several-Machines"


@pytest.fixture(scope="module")
def cluster():
    with contextlib.ExitStack() as stack:
        try:
            found = stack.enter_context(slurm_cluster.running())
        except Unavailable as reason:
            pytest.skip(str(reason))
        yield found


@dataclass
class Job:
    """A job and its output file."""

    cluster: slurm_cluster.Cluster
    id: str
    file: Path

    @property
    def output(self) -> str:
        return self.file.read_text() if self.file.exists() else ""

    def steps(self) -> list[str]:
        """The ID, number of tasks and nodes of each step of the job, except its script."""
        ask = ["squeue", "--steps", f"--jobs={self.id}", "--noheader", "--format=%i %A %N"]
        return [line for line in self.cluster.run(*ask).splitlines() if ".batch" not in line]

    def wait(self) -> str:
        """Waits until the job has ended; returns its state and exit code."""
        found = self.cluster.wait(self.id, 120)
        return f"{found['JobState']} {found['ExitCode']}"


@pytest.fixture
def submit(cluster, tmp_path):
    """`submit("HogWild", "--steps", 20, nodes=3)`: submits a job of three tasks."""
    submitted = []
    (tmp_path / "tmp").mkdir()

    def _submit(*words, root: Path = ROOT, ntasks: int = 3, curves: bool = False, **flags) -> Job:
        options = [f"--{name}={value}" for name, value in flags.items()]
        job = cluster.run(
            "sbatch", "--parsable", f"--output={tmp_path}/%j.out", f"--ntasks={ntasks}", *options,
            f"--chdir={tmp_path}", root / FOLDER / "slurm.sbatch", *words,
            TMPDIR=str(tmp_path / "tmp"), **{} if curves else {"NO_CURVES": "1"},
        )  # fmt: skip
        submitted.append(job)
        return Job(cluster, job, tmp_path / f"{job}.out")

    yield _submit
    for job in submitted:
        with contextlib.suppress(AssertionError):  # Slurm has forgotten it
            cluster.run("scancel", job)


def copy(tmp_path, **scripts: str) -> Path:
    root = copy_example("HogWild", tmp_path / "mine", **scripts)
    return Path(shutil.copytree(ROOT / FOLDER, root / FOLDER).parent)


def address(where: Path) -> str:
    """Where ps 0 of a run serves."""
    return re.search(r"^ps 0 serves at (\S+)$", (where / "logs/ps-0.log").read_text(), re.M)[1]


# A loop that is slow until there is a file `fast`, however long a killed task takes to come back.
SLOW = """import pathlib, time
        if not pathlib.Path(flags.results, "fast").exists():
            time.sleep(0.05)
        sess.run(step)"""


def test_two_runs_at_once_and_killed_tasks(submit, tmp_path):
    """Both have one task on each of the same three nodes, in one step. A ps and a worker come back
    in theirs."""
    where, other = tmp_path / "hogwild", tmp_path / "replicas"
    source = (ROOT / "HogWild" / "worker.py").read_text()
    assert source.count("sess.run(step)") == 1
    root = copy(tmp_path, worker=source.replace("sess.run(step)", SLOW))
    flags = ["--steps", 1500, "--timeout", seconds(600), "--results", where]
    job = submit("HogWild", *flags, root=root, nodes=3, curves=True)
    flags = ["--steps", 20, "--results", other]
    second = submit("In-Graph-Replication", *flags, nodes=3)  # with a chief
    reach(where, 30)
    steps = job.steps()
    assert [step.split()[1:] for step in steps] == [["3", "n[1-3]"]]
    kill_and_see_it_back(where, "ps", 0)
    kill_and_see_it_back(where, "worker", 1)
    assert job.steps() == steps
    (where / "fast").touch()
    assert second.wait() == "COMPLETED 0:0", second.output
    assert job.wait() == "COMPLETED 0:0", job.output

    lines = job.output.splitlines()
    assert lines[1] == f"2 workers, 1 ps on n[1-3]; logs and results in {where.name}"
    for name in ("ps 0", "worker 1"):
        assert f"{name} was killed by SIGKILL: restarted (1 of 3)" in lines
        assert re.search(rf"^{name} .* 0 \(1 restart\)$", job.output, re.M)
    assert re.search(r"^\[worker 1\] step \d+  loss [\d.]+  staleness \d+$", job.output, re.M)
    assert lines[-1].endswith(f"; results in {where.name}")
    summary = json.loads((where / "summary.json").read_text())
    assert summary["global_step"] == 1500 and summary["test_accuracy"] > 0.9
    restarts = [(task["job"], task["restarts"], task["exit_code"]) for task in summary["tasks"]]
    assert restarts == [("ps", 1, 0), ("worker", 0, 0), ("worker", 1, 0)]
    assert (where / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert not list(tmp_path.glob("tmp/*"))
    assert len(list(where.glob("logs/*.log"))) == 3

    assert second.output.splitlines()[1].startswith("1 worker, 1 ps, 1 chief on n[1-3]; ")
    assert address(where).startswith("n1:") and address(other).startswith("n1:")
    assert address(where) != address(other)


def test_a_job_goes_on_from_its_checkpoint(submit, cluster, tmp_path):
    """Slurm puts a job back into the queue, as if a node was lost. Later, a user cancels it, and
    submits another one with its checkpoints."""
    root = copy(tmp_path)
    job = submit("HogWild", "--steps", ENDLESS, "--delay", "0:0.01,1:0.01", root=root)

    def checkpoints() -> list[int]:
        names = [path.name for path in root.glob("HogWild/results/*/checkpoints/*.index")]
        return [int(k) for k in re.findall(r"^model\.ckpt-(\d+)\.index$", "\n".join(names), re.M)]

    def shown() -> list[int]:
        """The steps on the screen since the job started for the second time."""
        second = "".join(job.output.split("logs and results in")[2:])
        return [*map(int, re.findall(r"^\[worker \d\] step (\d+) ", second, re.M))]

    assert eventually(lambda: min(checkpoints(), default=0) > 20, 60), job.output
    cluster.run("scontrol", "requeue", job.id)
    assert eventually(lambda: len(shown()) > 3, 90), job.output
    assert min(shown()) > 20
    (where,) = root.glob("HogWild/results/*")
    cluster.run("scancel", job.id)
    assert job.wait().startswith("CANCELLED")
    assert eventually(lambda: not processes(), 5), processes()
    assert "restarted" not in job.output
    assert not list(tmp_path.glob("tmp/*"))

    saved, again = max(checkpoints()), tmp_path / "again"
    flags = ["--steps", saved + 20, "--checkpoint_dir", where / "checkpoints", "--results", again]
    last = submit("HogWild", *flags)
    assert last.wait() == "COMPLETED 0:0", last.output
    lines = [line for path in again.glob("events-*") for line in path.read_text().splitlines()]
    steps = sorted(json.loads(line)["global_step"] for line in lines)
    assert steps[0] > saved // 2 and steps[-1] == saved + 20


def test_results_on_the_disks_of_the_nodes(submit, cluster, tmp_path):
    """n1 has another disk at that path than n2 and n3. The ports are chosen."""
    where = cluster.local / "run"
    first = free_ports(3)
    job = submit("--port", first, "HogWild", "--steps", 60, "--results", where, nodes=3)
    assert job.wait() == "COMPLETED 0:0", job.output
    assert f"not on a shared disk: {where} of n2, n3; " in job.output
    assert address(where) == f"n1:{first}"
    summary = json.loads((where / "summary.json").read_text())
    assert sum(task["local_steps"] for task in summary["tasks"]) == 60 == summary["global_step"]
    assert "global step 60: 1,920 examples" in job.output
    assert (where / "parameters.npz").is_file()
    again = submit("HogWild", "--results", where, nodes=3)
    assert again.wait() == "FAILED 2:0"
    assert f"error: --results {where} already holds" in again.output


def free_ports(count: int) -> int:
    """The first of `count` free ports in a row."""
    for first in range(21000 + os.getpid() % 5000, 32000, count):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + count):
                stack.enter_context(socket.create_server(("", port)))
            return first
    raise AssertionError("no free ports")


# A task that tells its GPU and never ends, and a ps that fails when three workers have done so.
WAITS = """
import os, signal, sys
DEFAULTS = {"workers": 2, "ps": 1}
print("sees GPU", os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
signal.pause()
"""
FAILS = """
import pathlib, sys, time
logs = pathlib.Path(sys.argv[sys.argv.index("--results") + 1], "logs")
while sum("GPU" in path.read_text() for path in logs.glob("worker-*")) < 3:
    time.sleep(0.05)
sys.exit("no luck")
"""


def gpus(where: Path, *names: str) -> list[str]:
    """What some tasks have told."""
    logs = [where / f"logs/{name}.log" for name in names]
    assert eventually(lambda: all(path.exists() and "GPU" in path.read_text() for path in logs), 60)
    return [re.search("sees GPU (.*)", path.read_text())[1] for path in logs]


def test_a_task_that_fails_ends_the_others(submit, cluster, tmp_path):
    """On each node, the tasks take turns with the GPUs. The log may be on another node's disk."""
    root, where = copy(tmp_path, worker=WAITS, ps=FAILS), tmp_path / "broken"
    how = {"nodes": 2, "ntasks": 4, "ntasks-per-node": 2, "gpus-per-node": 2}
    job = submit("HogWild", "--results", where, root=root, **how)
    assert job.wait() == "FAILED 1:0"
    log = r"error: %s ended with exit code 1; .*broken/logs/.*.log ends with:\n\n(.*\n)*no luck\n"
    assert re.search(log % "ps 0", job.output), job.output
    assert eventually(lambda: not processes(), 5), processes()
    assert gpus(where, "worker-0", "worker-1", "worker-2") == ["1", "0", "1"]  # n1 also has the ps

    (root / "HogWild/worker.py").write_text('DEFAULTS = {"workers": 1}\nexit("no luck")')
    job = submit("HogWild", "--results", cluster.local / "broken", root=root, nodes=2, ntasks=2)
    assert job.wait() == "FAILED 1:0"
    assert re.search(log % "worker 0", job.output), job.output


def test_what_runs_the_tasks_is_killed(submit, cluster, tmp_path):
    """An agent is killed: the run ends. Ctrl-C stops the launcher, or it is killed: the step ends
    before the job. With --gpus-per-task, Slurm chooses the GPUs."""
    root, where = copy(tmp_path, worker=WAITS, ps=WAITS), tmp_path / "run"
    how = {"nodes": 2, "ntasks-per-node": 2, "gpus-per-task": 1}
    words = ["HogWild", "--workers", 2, "--ps", 1, "--results", where]
    job = submit(*words, root=root, ntasks=4, **how)
    assert gpus(where, "ps-0", "worker-0", "worker-1") == ["0", "1", "0"]
    agent = re.compile(rf"{sys.executable} \S*agent.py ")
    os.kill(max(pid for pid, words in processes().items() if agent.match(words)), signal.SIGKILL)
    assert job.wait() == "FAILED 1:0", job.output
    log = r"error: ps 0 ended with exit code \d+; run/logs/ps-0.log ends with:\n\n(.*\n)*"
    log += r"srun: error: n\d: task \d: Killed\n(.*\n)*the job step ended too early\n"
    assert re.search(log, job.output), job.output
    assert "restarted" not in job.output

    # Two tasks, the second of which tells its GPU: then both run.
    script = """for signal in INT KILL; do
        bash "$0" HogWild --results "$1/$signal" &
        until grep -s GPU "$1/$signal/logs/worker-0.log"; do sleep 0.1; done
        kill -$signal $!; wait $!; echo "exit code $?"
        while [ "$(squeue --steps --noheader --jobs=$SLURM_JOB_ID)" ]; do sleep 0.1; done
    done"""
    limited = ["timeout", seconds(60), "bash", "-c", script, root / FOLDER / "slurm.sbatch"]
    temporary = {"TMPDIR": str(tmp_path / "tmp")}
    said = cluster.run("salloc", "--quiet", "--ntasks=2", *limited, tmp_path / "two", **temporary)
    assert "\nstopped by SIGINT; nothing is left running\nexit code 130\n" in said
    assert said.endswith("\nexit code 137")
    assert not list(tmp_path.glob("tmp/*"))


@pytest.fixture
def script(monkeypatch):
    """slurm.py"""
    monkeypatch.syspath_prepend(ROOT / FOLDER)
    import slurm

    return slurm


SRUN = """#!/usr/bin/env bash
# Like srun, which runs a command, and at times loses the end of what it printed.
while [[ $1 == --* ]]; do shift; done
echo >> "$TRIES"
if [ "$(wc -l < "$TRIES")" -gt "$LOSES" ]; then exec "$@"; fi
"$@" | head -c 2000
echo "srun: error: step_launch_notify_io_failure: aborting, io error with slurmstepd" >&2
exit 1
"""


@pytest.mark.parametrize("loses", [2, 100])
def test_srun_loses_output(script, monkeypatch, capsys, tmp_path, loses):
    """A short step runs again; the files of a node arrive, or an error says that they did not."""
    (tmp_path / "srun").write_text(SRUN)
    (tmp_path / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("LOSES", str(loses))

    monkeypatch.setenv("TRIES", str(tmp_path / "tries"))
    numbers = "".join(f"{i}\n" for i in range(5000))
    if loses == 2:
        assert script.job_steps.on_each({"n1": ["seq", "0", "4999"]}) == {"n1": numbers}
    else:
        with pytest.raises(SystemExit):
            script.job_steps.on_each({"n1": ["seq", "0", "4999"]})
        lost = "node n1: srun: error: step_launch_notify_io_failure: aborting, io error with"
        assert_one_sentence(capsys.readouterr().err, lost)

    monkeypatch.setenv("TRIES", str(tmp_path / "others"))
    (tmp_path / "node").mkdir()
    (tmp_path / "node" / "numbers").write_text(numbers)
    pack = script.job_steps.Step.__init__

    def from_node(step, node, words):  # as if the node had another disk
        pack(step, node, [tmp_path / "node" if word == tmp_path / "here" else word
                          for word in words])  # fmt: skip

    monkeypatch.setattr(script.job_steps.Step, "__init__", from_node)
    (tmp_path / "here").mkdir()
    assert script.job_steps.copy("n1", tmp_path / "here") is (loses == 2)
    found = tmp_path / "here" / "numbers"
    assert found.exists() is (loses == 2) and (loses > 2 or found.read_text() == numbers)


@pytest.mark.parametrize(("tasks", "words", "more"), [
    (5, "HogWild", "--workers 4"),
    (5, "HogWild --ps 3", "--workers 2"),
    (5, "HogWild --workers 2", "--ps 3"),
    (5, "HogWild --workers 2 --ps 1", ""),
    (3, "HogWild --workers 2", ""),
    (5, "In-Graph-Replication --workers 2", "--ps 2"),
    (5, "Actor-Learner --workers 2", ""),  # has no ps
    (5, "Distributed-Setup", ""),
])  # fmt: skip
def test_the_job_says_how_many_workers_or_ps(script, monkeypatch, tasks, words, more):
    monkeypatch.setattr(script.job_steps, "slots", lambda: ["n1"] * tasks)
    example, *flags = [*words.split(), "--results", "new"]
    completed, nodes = script.complete(ROOT / example, flags)
    assert completed == [*flags, *more.split()] and len(nodes) == tasks


def test_nodes_with_different_versions(script, monkeypatch, capsys):
    found = {node: {"versions": {"python": version}, "ports": [1]}
             for node, version in (("n1", "3.11.7"), ("n2", "3.12.1"))}  # fmt: skip
    said = {node: f"{json.dumps(what)}\n" for node, what in found.items()}
    monkeypatch.setattr(script.job_steps, "on_each", lambda commands: said)
    job = SimpleNamespace(slots=["n1", "n2"], scheme="HogWild", port=None)
    with pytest.raises(SystemExit) as ended:
        script.Job.addresses(job, {"ps": [Path("ps.py")], "worker": [Path("worker.py")]}, False)
    assert ended.value.code == 2
    different = "node n1 has python 3.11.7 and node n2 has 3.12.1: install the same"
    assert_one_sentence(capsys.readouterr().err, different)


def test_one_sentence_says_what_is_wrong(submit, cluster, tmp_path):
    never = tmp_path / "never"
    listed = "(--help lists all flags)"
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        jobs = [
            (["HogWild", "--workers", 3],
             "this job has 3 tasks, and HogWild with these flags needs 4: use sbatch --ntasks 4"),
            (["HogWild", "--wrong"], f"unknown argument --wrong {listed}"),
            (["HogWild", "--network", "private"],
             f"--network: a run on several machines has no private network; leave it out {listed}"),
            (["HogWild", "--threads", 2],
             "HogWild runs in one process with these flags, so it needs no other node: use "
             'sbatch --wrap "bash HogWild/run.sh"'),
            (["--port", port, "HogWild", "--results", never],
             f"--port: n1:{port} is in use: choose other ports, or leave --port out"),
        ]  # fmt: skip
        # n1: with the others in the queue, the first of a job's nodes could be any.
        submitted = [(submit(*words, nodelist="n1"), sentence) for words, sentence in jobs]
        for job, sentence in submitted:
            assert (job.wait(), job.output) == ("FAILED 2:0", f"error: {sentence}\n")
    assert not never.exists()
    script = ROOT / FOLDER / "slurm.sbatch"
    assert cluster.run("bash", script, "HogWild", code=2) == (
        "error: this is not a Slurm job: use sbatch Several-Machines/slurm.sbatch EXAMPLE [flags]"
    )
    few = cluster.run("salloc", "--quiet", "--ntasks=1", "bash", script, "HogWild", code=2)
    assert few.startswith("error: this job has 1 task, and HogWild with these flags needs 2: ")
