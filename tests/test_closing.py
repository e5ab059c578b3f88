"""Nobody waits for a task that has left: its session is not closed."""

import subprocess
import sys

import pytest
from conftest import ROOT, copy_example, environment
from machine import seconds

from common.launch import network

# Says when TensorFlow closes a session: for the first time, since to delete it does so again.
SAYS = """
plain = tf.Session.close


def close(self):
    if not hasattr(self, "said"):
        self.said = True
        print("closes a session", flush=True)
    plain(self)


tf.Session.close = close
"""
# Sessions on a server that is stopped: to close each takes ten seconds or more.
STOPPED = """
import os, signal, sys
from common import cluster
from common.graph import closing
import tensorflow.compat.v1 as tf

pid, ps, worker = int(sys.argv[1]), *sys.argv[2:]
server = tf.train.Server({"ps": [ps], "worker": [worker]}, "worker", 0)
with tf.Graph().as_default(), tf.device("/job:ps/task:0"):
    number = tf.random.uniform([])
    closed, deleted, kept = (closing.Session(server.target) for _ in range(3))
    for session in (closed, deleted, kept):
        session.run(number)
        session.closes = False
    os.kill(pid, signal.SIGSTOP)
    closed.close()
    del closed, deleted, session
    print("leaves", flush=True)
"""


def test_a_session_does_not_wait_for_a_stopped_task():
    """Neither when it is closed or deleted, nor when the process ends."""
    ps, worker = (f"127.0.0.1:{port}" for port in network.free_ports(2, private=False))
    serve = ["-m", "common.commands.server", "--cluster_spec", f"ps|{ps},worker|{worker}",
             "--job_name", "ps", "--task_index", "0"]  # fmt: skip
    env = environment(PYTHONPATH=str(ROOT))
    with subprocess.Popen(
        [sys.executable, "-u", *serve], env=env, text=True, stdout=subprocess.PIPE
    ) as server:
        try:
            assert any("serves at" in line for line in server.stdout)
            done = subprocess.run(
                [sys.executable, "-c", STOPPED, str(server.pid), ps, worker], env=env, text=True,
                capture_output=True, timeout=seconds(25), check=False,
            )  # fmt: skip
            assert "leaves" in done.stdout and done.returncode == 0, done.stdout + done.stderr
        finally:
            server.kill()


@pytest.mark.slow("two runs")
@pytest.mark.parametrize("example", ["HogWild", "One-Network-per-Device"])
def test_no_session_is_closed_after_the_tasks_have_left(run, tmp_path, example):
    """A ps may exit in the same moment; then to close may take forever."""
    text = (ROOT / example / "worker.py").read_text()
    imports = "import tensorflow.compat.v1 as tf\n"
    assert text.count(imports) == 1
    root = copy_example(example, tmp_path / "mine", worker=text.replace(imports, imports + SAYS))
    gates = root / "common" / "gates.py"
    source, opens = gates.read_text(), "                session.run(self._open)\n"
    assert source.count(opens) == 1
    told = '                print(f"opens {self._open.name}", flush=True)\n'
    gates.write_text(source.replace(opens, told + opens))
    finished = run(example, "--steps", 20, root=root)
    for k in (0, 1):
        log = (finished.results / "logs" / f"worker-{k}.log").read_text()
        closed, left = log.rfind("closes a session"), log.rfind("opens ")
        assert 0 < closed < left or closed < 0 < left, log
