"""ps.py and worker.py started by hand: in three terminals, and on three hosts."""

import contextlib
import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys

import pytest
from conftest import ROOT, environment
from machine import seconds

from common.record import trace
from common.told import by_hand, tf_config

pytestmark = pytest.mark.slow("tests how runs start, not a scheme")

TASKS = [("ps", 0), ("worker", 0), ("worker", 1)]


def start(job, index, tmp_path, *flags, prefix=(), **env):
    script = str(ROOT / "HogWild" / f"{job}.py")
    results = ["--results", str(tmp_path / f"{job}-{index}")] if job == "worker" else []
    flags = ["--steps", "60", "--timeout", str(seconds(60)), *flags]
    return subprocess.Popen(
        [*prefix, sys.executable, script, *results, *flags],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(**env),
    )


def finish(tasks, tmp_path, ports, earlier=""):
    """All tasks end on their own, including the ps; both workers made updates; none is missing.

    `ports`: those that the tasks warn about. `earlier`: events that worker 1 must have kept.
    """
    outputs = [task.communicate(timeout=seconds(90))[0] for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0, 0], "\n".join(outputs)
    for output, port in zip(outputs, ports, strict=True):
        warnings = [line for line in output.splitlines() if line.startswith("warning:")]
        assert len(warnings) == 1
        assert warnings[0].startswith(f"warning: port {port} is open on all interfaces of this")
    assert "ps 0 exits after worker 0 and worker 1" in outputs[0]
    assert "test accuracy" in outputs[1]
    assert (tmp_path / "worker-0" / "parameters.npz").is_file()
    steps = []
    for k in (0, 1):
        text = trace.events_file(tmp_path / f"worker-{k}", k).read_text()
        assert not k or text.startswith(earlier)
        lines = text.removeprefix(earlier).splitlines()
        steps.append([json.loads(line)["global_step"] for line in lines])
    assert sorted(steps[0] + steps[1]) == list(range(1, 61))
    assert steps[0]
    assert steps[1]


@pytest.mark.usefixtures("default_ports")
def test_three_terminals_with_the_default_ports(tmp_path):
    """Worker 1 finds the events of an earlier process, which was killed while it wrote a line: it
    cuts that one off, and appends to the others."""
    earlier = "".join(json.dumps({"global_step": 1, "time": k}) + "\n" for k in range(3))
    (tmp_path / "worker-1").mkdir()
    trace.events_file(tmp_path / "worker-1", 1).write_text(earlier + '{"time": 17')
    tasks = [start(job, i, tmp_path, "--task_index", str(i)) for job, i in TASKS]
    finish(tasks, tmp_path, [2222, 2223, 2224], earlier)


@contextlib.contextmanager
def taken(shared: bool):
    """A port that another program uses, even if it would share it, as TensorFlow's servers do; and
    what a task says about it."""
    with socket.socket() as other:
        if shared:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("", 0))
        other.listen()
        port = other.getsockname()[1]
        what = "in use: stop the program using it, or choose another port"
        yield port, f"error: port {port} is {what}"


@pytest.mark.parametrize("shared", [False, True])
def test_a_port_is_known_to_be_in_use(capsys, shared):
    with taken(shared) as (port, sentence):
        with pytest.raises(SystemExit) as ended:
            by_hand.check_free(f"localhost:{port}")
        assert (ended.value.code, capsys.readouterr().err) == (2, f"{sentence}\n")


@pytest.mark.parametrize(("job", "shared"), [("ps", True), ("worker", False)])
def test_a_port_in_use(tmp_path, job, shared):
    """The task says so, and leaves no file."""
    with taken(shared) as (port, sentence):
        task = start(job, 0, tmp_path, f"--{job}_hosts", f"localhost:{port}")
        output, _ = task.communicate(timeout=seconds(60))
    assert task.returncode == 2
    said = [line for line in output.splitlines() if not line.startswith(("WARNING: All", "I0"))]
    assert said == [sentence]
    assert not list(tmp_path.iterdir())


def test_tf_config_with_a_chief(tmp_path):
    from common.launch import network

    ports = network.free_ports(3, private=False)
    ps, chief, worker = (f"localhost:{port}" for port in ports)
    cluster = {"ps": [ps], "chief": [chief], "worker": [worker]}
    tasks = []
    for script, (job, index) in zip(TASKS, [("ps", 0), ("chief", 0), ("worker", 0)]):
        config = json.dumps({"cluster": cluster, "task": {"type": job, "index": index}})
        tasks.append(start(*script, tmp_path, TF_CONFIG=config))
    finish(tasks, tmp_path, ports)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux reserves ports")
def test_two_programs_that_choose_ports_at_the_same_time_choose_different_ones(monkeypatch):
    """Although the servers of neither have started yet."""
    from common.launch import network

    code = "from common.launch import network; print(*network.free_ports(4, False)); input()"
    other = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=environment(), text=True,
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
    with other:
        taken = [int(port) for port in other.stdout.readline().split()]
        sample = random.sample
        monkeypatch.setattr(random, "sample", lambda *what: taken + sample(*what))
        assert len(taken) == 4 and not set(network.free_ports(4, False)) & set(taken)
        other.communicate("\n")
    assert set(network.free_ports(4, False)) & set(taken)  # the other one has ended


def test_a_process_that_chooses_many_ports_keeps_the_newest_hundred():
    from common.launch import network

    every = [network.free_ports(3, False) for _ in range(50)]
    assert len(network._reserved) == (100 if sys.platform == "linux" else 0)
    newest = [port for ports in every[-33:] for port in ports]
    assert len(set(newest)) == 99


@pytest.fixture
def hosts():
    """Three hosts with an address each: network namespaces joined by veth pairs and a bridge."""
    if not shutil.which("ip"):
        pytest.skip("needs the ip command (iproute2)")
    names = [f"dtf{os.getpid()}h{i}" for i in range(4)]  # the last one holds the bridge

    def ip(*words):
        return subprocess.run(["ip", *words], capture_output=True, text=True)

    try:
        made = [ip("netns", "add", name) for name in names]
        if any(answer.returncode for answer in made):
            pytest.skip(f"this system does not allow network namespaces: {made[0].stderr.strip()}")
        hub = names[3]
        todo = [["-n", hub, "link", "add", "br0", "type", "bridge"],
                ["-n", hub, "link", "set", "br0", "up"]]  # fmt: skip
        for i, name in enumerate(names[:3]):
            todo += [
                ["-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", f"p{i}",
                 "netns", hub],
                ["-n", hub, "link", "set", f"p{i}", "master", "br0", "up"],
                ["-n", name, "address", "add", f"10.0.0.{i + 1}/24", "dev", "eth0"],
                ["-n", name, "link", "set", "eth0", "up"],
                ["-n", name, "link", "set", "lo", "up"],
            ]  # fmt: skip
        for words in todo:
            answer = ip(*words)
            if answer.returncode:
                pytest.skip(f"ip {' '.join(words)}: {answer.stderr.strip()}")
        yield names[:3]
    finally:
        for name in names:
            ip("netns", "delete", name)


def test_three_hosts(hosts, tmp_path):
    flags = ["--ps_hosts", "10.0.0.1:2222", "--worker_hosts", "10.0.0.2:2222,10.0.0.3:2222"]
    tasks = [
        start(job, index, tmp_path, "--job_name", job, "--task_index", str(index), *flags,
              prefix=["ip", "netns", "exec", host])
        for host, (job, index) in zip(hosts, TASKS)
    ]  # fmt: skip
    finish(tasks, tmp_path, [2222] * 3)


def test_the_page_has_a_whole_tf_config():
    """docs/OPERATIONS.md: JSON in quotation marks of the shell, as this collection reads it."""
    page = (ROOT / "docs/OPERATIONS.md").read_text()
    (text,) = re.findall(r"export TF_CONFIG='(.*?)'", page, re.S)
    hosts, job, index = tf_config.parse(text, "worker", ("ps", "worker"))
    assert (job, index) == ("worker", 1)
    assert hosts == {
        "ps": ["10.0.0.1:2222"],
        "worker": ["10.0.0.2:2222", "10.0.0.3:2222"],
    }


@pytest.mark.parametrize(
    ("script", "flags", "words"),
    [
        ("Keras-Model/worker.py", ["--scheme", "agn"], "--scheme agn: start agn.py"),
        ("CIFAR-10/worker.py", ["--scheme", "synchronous"], "start synchronous.py"),
        ("HogWild/worker.py", ["--threads", "2"], "--threads: start threads.py"),
        ("Sparse-Embeddings/worker.py", ["--dense"], "--dense: start dense.py"),
    ],
)
def test_a_flag_that_chooses_another_script_is_refused(tmp_path, script, flags, words):
    """By hand nobody would start that one: the run would be another scheme's."""
    process = subprocess.run(
        [sys.executable, ROOT / script, *flags],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert process.returncode == 2
    assert process.stderr.splitlines()[-1].startswith("error: worker.py is not the script for ")
    assert words in process.stderr
