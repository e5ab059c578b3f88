"""Several-Machines/run.sh: an example on three hosts, through real ssh."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import hosts
import pytest
from conftest import (
    ENDLESS,
    ROOT,
    Finished,
    copy_example,
    environment,
    eventually,
    listening,
    processes,
)
from machine import seconds, slowness
from test_flags import assert_one_sentence
from watch import Unavailable

from common.record import results, trace

pytestmark = pytest.mark.slow("tests how runs start, not a scheme")

TASKS = ("ps 0", "worker 0", "worker 1")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Hosts a, b and c."""
    with contextlib.ExitStack() as stack:
        try:
            found = stack.enter_context(hosts.started(tmp_path_factory.mktemp("hosts")))
        except Unavailable as reason:
            pytest.skip(str(reason))
        with open(found.where / "ssh_config", "a") as config:
            config.write(f"Host closed\nHostName 127.0.0.1\nPort 1\n"
                         f"Host again\nHostName {found.addresses['a']}\n")  # fmt: skip
        yield found


@pytest.fixture
def start(cluster, tmp_path):
    """Starts a run on all hosts, or on those in `on`, and returns (its Popen, its results folder).
    Afterwards nothing may be left on any host."""
    started = []

    def _start(*flags, on="a,b,c", root=ROOT, **env):
        command = ["bash", root / "Several-Machines" / "run.sh", "--ssh", cluster.ssh]
        command += ["--hosts", on, *flags]
        process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=tmp_path,
            env=environment(**env),
        )
        started.append(process)
        return process

    yield _start
    for process in started:
        if process.poll() is None:
            process.kill()
        if not process.stdout.closed:
            process.communicate()
    assert eventually(lambda: not left(cluster), 20), left(cluster)


def left(cluster) -> dict[str, list]:
    """The processes and files on each host where there are any."""
    found = {name: [*cluster.files(name), *cluster.processes(name)] for name in cluster.names}
    return {name: what for name, what in found.items() if what}


def task_pids() -> dict[str, int]:
    """Task -> its process on its host, which is no proxy and not what starts it there."""
    found = {}
    for pid, command in processes().items():
        task = re.match(r"\S*python\S* \S+/(?:ps|worker|chief)\.py .*--job_name (\w+) "
                        r"--task_index (\d+)", command)  # fmt: skip
        if task:
            found[" ".join(task.groups())] = pid
    return found


def kill(task: str, where: Path) -> None:
    """Kills a task on its host, and waits until the launcher has started it again."""
    pid = task_pids()[task]
    os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: task_pids().get(task, pid) != pid, 30), f"{task} did not come back"


def reached(process, where: Path, step: int, worker: int = 0) -> None:
    """Waits until a worker has made the given update; if the run ends before, shows its screen."""
    tail, found = results.Tail(trace.events_file(where, worker)), []

    def over():
        found.extend(event["global_step"] for event in tail.read())
        return process.poll() is not None or (found and found[-1] >= step)

    assert eventually(over, 60), (task_pids(), [p.read_text() for p in where.glob("logs/*.log")])
    assert process.poll() is None, process.communicate()[0]


def finish(process, where) -> Finished:
    output, _ = process.communicate(timeout=seconds(120))
    assert process.returncode == 0, output
    return Finished(0, output, where)


def test_three_hosts(start, cluster, tmp_path):
    """A worker, then the ps are killed on their hosts; everything comes back, also the files."""
    where, delay = tmp_path / "results", 0.02 * slowness()
    process = start("HogWild", "--plain", "--workers", 2, "--steps", 500, "--results", where,
                    "--delay", f"0:{delay},1:{delay}")  # fmt: skip
    for k in (0, 1):
        reached(process, where, 20, k)
    pids = task_pids()
    assert sorted(pids) == list(TASKS)
    ports = [set(listening().values()), *map(cluster.listening, cluster.names)]
    for name, task in zip(cluster.names, TASKS):
        space = Path(f"/proc/{pids[task]}/ns/net")
        assert space.samefile(f"/proc/{cluster.servers[name].pid}/ns/net")
        command = processes()[pids[task]]
        job, _, k = task.partition(" ")
        listed = re.search(rf"--{job}_hosts (\S+)", command)[1].split(",")
        address, _, port = listed[int(k)].rpartition(":")
        assert address == cluster.addresses[name]
        # Its server is on this host only.
        assert [int(port) in some for some in ports] == [
            False, *(other == name for other in cluster.names)
        ]  # fmt: skip
        (kept,) = [file for file in cluster.files(name) if file.startswith("distributed-")]
        assert not (cluster.disk(name) / kept).exists()  # no shared disk
    kill("worker 1", where)
    kill("ps 0", where)
    finished = finish(process, where)
    lines = finished.output.splitlines()
    assert lines[0].startswith("warning: the servers of this run listen on all interfaces of its")
    assert lines[1] == "on a: ps 0; on b: worker 0; on c: worker 1"
    assert finished.output.count("warning: ") == 1
    for task in ("worker 1", "ps 0"):
        assert f"{task} was killed by SIGKILL: restarted (1 of 3)" in lines
    summary = finished.summary
    ended = [(f"{task['job']} {task['index']}", task["exit_code"], task["restarts"])
             for task in summary["tasks"]]  # fmt: skip
    assert ended == [("ps 0", 0, 1), ("worker 0", 0, 0), ("worker 1", 0, 1)]
    assert (summary["scheme"], summary["global_step"]) == ("HogWild", 500)
    assert summary["test_accuracy"] > 0.85
    # The ps returned to its newest checkpoint, so some updates were made twice.
    numbers = {event["global_step"] for k in (0, 1) for event in finished.events(k)}
    assert numbers <= set(range(1, 501)) and len(numbers) > 450  # a kill may lose a few lines
    assert summary["examples"] == 32 * sum(len(finished.events(k)) for k in (0, 1))
    assert [array.shape for array in finished.parameters] == [(64, 128), (128,), (128, 10), (10,)]
    assert (where / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert (where / "checkpoints" / "model.ckpt-500.index").exists()
    for board in ("worker-0", "worker-1", "test"):
        assert list((where / board).glob("*.tfevents.*"))
    logs = {task: (where / "logs" / f"{task.replace(' ', '-')}.log").read_text() for task in TASKS}
    assert logs["ps 0"].count(f"ps 0 serves at {cluster.addresses['a']}:") == 2
    assert "test accuracy" in logs["worker 0"]
    assert f"test accuracy {summary['test_accuracy']:.2%}; results in results" == lines[-1]


def test_a_chief_and_a_lost_connection(start, cluster, tmp_path):
    """In-Graph-Replication on two of three hosts; a worker's ssh is killed, so its task ends."""
    where, delay = tmp_path / "results", 0.02 * slowness()
    process = start("In-Graph-Replication", "--plain", "--steps", 150, "--results", where,
                    "--delay", f"0:{delay}", on="a,b", NO_CURVES="1")  # fmt: skip
    reached(process, where, 20)
    pid = task_pids()["worker 1"]
    how = re.compile(r"ssh .*remote\.py task .*--job_name worker --task_index 1\b", re.S)
    ssh = [number for number, command in processes().items() if how.match(command)]
    os.kill(ssh[0], signal.SIGKILL)
    assert eventually(lambda: task_pids().get("worker 1", pid) != pid, 30)
    assert len(ssh) == 1
    assert pid not in processes()
    finished = finish(process, where)
    lines = finished.output.splitlines()
    assert lines[1] == "on a: ps 0, worker 0; on b: chief 0, worker 1"
    at = lines.index("worker 1 was killed by SIGHUP: restarted (1 of 3)")
    assert "the connection to host b was lost" in lines[at - 1 : at + 5]
    ended = {f"{task['job']} {task['index']}": (task["exit_code"], task["restarts"])
             for task in finished.summary["tasks"]}  # fmt: skip
    assert ended == {"ps 0": (0, 0), "worker 0": (0, 0), "worker 1": (0, 1), "chief 0": (0, 0)}
    assert any(line.startswith("client: ") for line in lines)  # the task's own line for the screen
    assert json.loads((where / "client.json").read_text())["replicas"] == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_stopped_launcher_leaves_nothing(start, cluster, tmp_path, number):
    """Ctrl-C in the middle; `kill -9` while the tasks start."""
    where = tmp_path / "results"
    process = start("HogWild", "--plain", "--steps", ENDLESS, "--results", where)
    if number == signal.SIGINT:
        reached(process, where, 1)
    assert eventually(lambda: sorted(task_pids()) == list(TASKS), 60)
    process.send_signal(number)
    output, _ = process.communicate(timeout=seconds(30))
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert output.endswith("\nstopped by SIGINT; nothing is left running\n")
        assert not any(map(cluster.files, cluster.names))  # it has waited for that
        assert trace.events_file(where, 0).exists()
    assert eventually(lambda: not left(cluster), 20), left(cluster)


@pytest.mark.parametrize(("hosts", "words", "said"), [
    ("a,nosuch.invalid", ["HogWild"], ["host nosuch.invalid cannot be reached: ssh: Could not",
                                       "check `ssh nosuch.invalid true`"]),
    ("a,closed", ["HogWild"], ["host closed cannot be reached", "Connection refused"]),
    ("a,again", ["HogWild"], ["a and again are the same host", "name each host once"]),
    ("a,,b", ["HogWild"], ["--hosts: must be names separated by commas"]),
    ("a,b", ["--at", "/no where", "HogWild"], ["host a: there is no collection in /no where: clone",
                                               "--at"]),
    ("a,b", [], ["EXAMPLE"]),
    ("a,b", ["Many-Workers"], ["is not an example folder"]),
    ("a,b", ["Non-Distributed-Setup"], ["runs in one process", "no other host"]),
    ("a,b", ["HogWild", "--threads", "2"], ["runs in one process", "no other host"]),
    ("a,b", ["HogWild", "--link_mbit", "9"], ["--link_mbit: a run on several hosts has no"]),
    ("a,b", ["HogWild", "--network", "private"], ["--network private: a run on several hosts"]),
    ("a,b", ["HogWild", "--wrokers", "2"], ["unknown argument --wrokers 2"]),
    ("a,b", ["HogWild", "--results", str(ROOT / "HogWild")], ["is not empty", "--checkpoint_dir"]),
])  # fmt: skip
def test_one_sentence(start, cluster, hosts, words, said):
    output, _ = (process := start(*words, on=hosts)).communicate(timeout=seconds(60))
    assert process.returncode == 2
    assert_one_sentence(output, *said)


def copied(to: Path, **scripts: str) -> Path:
    copy = copy_example("HogWild", to, **scripts)
    shutil.copytree(ROOT / "Several-Machines", copy / "Several-Machines")
    return copy


# A task that never ends.
WAITS = 'import signal\nDEFAULTS = {"workers": 1, "ps": 1}\nsignal.pause()'


def test_a_host_out_of_reach(start, cluster, tmp_path):
    """A cable is cut until both sides have given up, which they do sooner here."""
    copy = copied(tmp_path / "copy", ps=WAITS, worker=WAITS)
    alive = '"ServerAliveInterval": 10,\n           "ServerAliveCountMax": 3'
    for script, usual, now in (
        ("remote.py", "SILENCE = 30", f"SILENCE = {seconds(4)}"),
        ("connection.py", "BEAT = 5", "BEAT = 0.5"),
        ("connection.py", alive, alive.replace("3", "1").replace("10", f"{int(seconds(1))}")),
    ):
        path = copy / "Several-Machines" / script
        assert path.read_text().count(usual) == 1
        path.write_text(path.read_text().replace(usual, now))
    many = ["--max_restarts", 99]  # while the cable is cut
    process = start("--at", copy, "HogWild", "--plain", *many, on="a,b", root=copy)
    assert eventually(lambda: sorted(task_pids()) == ["ps 0", "worker 0"], 60)
    with cluster.cut_off("b"):
        assert eventually(lambda: not cluster.files("b"), 20)  # also kills the task
        assert list(task_pids()) == ["ps 0"]
    output, _ = process.communicate(timeout=seconds(60))
    assert process.returncode == 2
    *lines, last = output.splitlines()
    assert "worker 0 was killed by SIGHUP: restarted (1 of 99)" in lines
    assert re.fullmatch("error: .* was out of reach for so long that it removed its files of this "
                        "run: start the run again", last)  # fmt: skip


def test_versions_that_differ(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "Several-Machines")
    from host import difference

    usual = {"python": "3.11.7", "numpy": "2.4.6", "code": "1f"}

    def said(**other: str) -> str:
        found = {"this machine": usual, "host a": usual, "host b": usual | other}
        return difference({name: {"versions": versions} for name, versions in found.items()})

    assert said() == ""
    both = "this machine and host b have different code: copy the same folder to both"
    assert said(code="2e") == both
    numpy = "this machine has numpy 2.4.6 and host b has 2.4.5: install the same version on all"
    assert said(numpy="2.4.5") == f"{numpy} hosts"


def test_a_project_of_ones_own(start, cluster, tmp_path):
    """What docs/QUESTIONS.md says to copy runs on hosts that do not have the clone; the example has
    another name. A folder without Several-Machines beside it is refused with what to do."""
    copies = "cp -r HogWild common Several-Machines ../my-project"
    assert copies in (ROOT / "docs/QUESTIONS.md").read_text()
    copy = copied(tmp_path / "my-project")
    (copy / "HogWild").rename(copy / "Mine")
    where = tmp_path / "results"
    process = start("--at", copy, "Mine", "--plain", "--steps", 30, "--results", where, root=copy)
    finished = finish(process, where)
    assert (finished.summary["scheme"], finished.summary["global_step"]) == ("Mine", 30)
    process = start(copy / "Mine", "--plain", on="a")
    output, _ = process.communicate(timeout=seconds(60))
    assert process.returncode == 2
    assert_one_sentence(output, f"copy {ROOT.name}/Several-Machines to {copy}, copy that folder to")


def test_errors_of_the_other_side(start, cluster, tmp_path):
    """Other code than here; then, in a copy that is the same everywhere, an error and a sentence of
    a script."""
    copy = copied(tmp_path / "copy")
    worker = copy / "HogWild" / "worker.py"

    def begins(line: str, **how) -> tuple[int, str]:
        worker.write_text(f"{line}\n{(ROOT / 'HogWild' / 'worker.py').read_text()}")
        process = start("--at", copy, "HogWild", "--plain", "--workers", 1, on="a,b", **how)
        output, _ = process.communicate(timeout=seconds(60))
        return process.returncode, output

    code, output = begins("raise ValueError('mine')")
    assert code == 2
    different = "this machine and host a have different code: copy the same folder to both"
    assert_one_sentence(output, different)
    code, output = begins("raise ValueError('mine')", root=copy)
    assert code == 1
    assert "error: worker 0 ended with exit code 1; " in output
    assert "worker-0.log ends with:\n\nTraceback (most recent call last):\n" in output
    assert output.endswith("\nValueError: mine\n")
    code, output = begins("from common import fail; fail('this is too little')", root=copy)
    assert code == 2
    assert output.splitlines()[3:] == ["error: this is too little"]
    assert len(list((copy / "HogWild" / "results").iterdir())) == 1  # of the run with a log
