"""The stand-alone server: the classic command line, sessions of other processes, bad input."""

import signal
import subprocess
import sys

import pytest
from conftest import ROOT, environment, eventually
from machine import seconds

from common.commands import server
from common.launch import network
from common.told import addresses

CLIENT = """
import sys
from common import cluster
import tensorflow.compat.v1 as tf
tf.disable_eager_execution()
with tf.device("/job:" + sys.argv[2]):
    total = tf.random.uniform([], 3, 4, tf.int32, name="total")  # 3, but not a constant
with tf.Session(sys.argv[1]) as session:
    options, about = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE), tf.RunMetadata()
    print("total", session.run(total, options=options, run_metadata=about))
    print("on", *[d.device for d in about.step_stats.dev_stats if any(
        n.node_name == "total" for n in d.node_stats)])
    print("devices", *sorted(device.name for device in session.list_devices()))
"""


def command(*flags):
    return [sys.executable, "-m", "common.commands.server", *flags]


@pytest.fixture
def serve():
    """Starts a server; returns its process."""
    started = []

    def _serve(spec, job, index=0):
        flags = [f"--cluster_spec={spec}", f"--job_name={job}", f"--task_index={index}"]
        process = subprocess.Popen(command(*flags), cwd=ROOT, env=environment(), text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)  # fmt: skip
        started.append(process)
        return process

    yield _serve
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def client(address, job):
    program = [sys.executable, "-c", CLIENT, f"grpc://{address}", job]
    done = subprocess.run(program, cwd=ROOT, env=environment(), text=True, capture_output=True,
                          timeout=seconds(90))  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def assert_it_ends(process, how: signal.Signals, address: str) -> None:
    """Without a word, and nothing answers any more."""
    process.send_signal(how)
    assert process.communicate(timeout=seconds(10))[0] == ""  # no output
    assert process.returncode == 0
    assert eventually(lambda: not addresses.answers(address), 5)


@pytest.mark.slow("starts servers and a client")
def test_a_session_of_another_process_runs_on_it(serve):
    [port] = network.free_ports(1, private=False)
    process = serve(f"local|localhost:{port}", "local")
    said = [process.stdout.readline(), process.stdout.readline()]
    assert said[0].startswith("warning: ")
    assert "all interfaces" in said[0]
    target = f"grpc://localhost:{port}"
    assert said[1] == f"local 0 serves at localhost:{port}; a session's target is {target}\n"
    seen = client(f"localhost:{port}", "local/task:0")
    assert "total 3" in seen
    assert "on /job:local/replica:0/task:0/device:CPU:0" in seen
    assert_it_ends(process, signal.SIGINT, f"localhost:{port}")


@pytest.mark.slow("starts servers and a client")
def test_several_jobs_form_one_cluster(serve):
    a, b, c = (f"localhost:{port}" for port in network.free_ports(3, private=False))
    spec = f"worker|{a};{b},ps|{c}"
    tasks = [serve(spec, "worker", 0), serve(spec, "worker", 1), serve(spec, "ps")]
    for task in tasks:
        task.stdout.readline()
        assert " serves at " in task.stdout.readline()
    seen = client(a, "ps/task:0")  # requested from worker 0, computed on the ps
    assert "on /job:ps/replica:0/task:0/device:CPU:0" in seen
    for name in ("ps/replica:0/task:0", "worker/replica:0/task:0", "worker/replica:0/task:1"):
        assert f"/job:{name}/device:CPU:0" in seen
    for task, address in zip(tasks, (a, b, c)):
        assert_it_ends(task, signal.SIGTERM, address)


def test_the_specification_of_several_jobs():
    assert server.cluster_spec("local|localhost:2222") == {"local": ["localhost:2222"]}
    jobs = server.cluster_spec("worker|a:2222;b:2222,ps|[::1]:2222")
    assert jobs == {"worker": ["a:2222", "b:2222"], "ps": ["[::1]:2222"]}


ONE = "--cluster_spec=local|localhost:2222"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "--cluster_spec"),
        (["--cluster_spec=local", "--job_name=local"], "in quotes, not 'local'"),
        (["--cluster_spec=", "--job_name=local"], "'job|host:port;"),
        (
            ["--cluster_spec=local|localhost", "--job_name=local"],
            "'localhost' does not have the form",
        ),
        (["--cluster_spec=local|", "--job_name=local"], "'' does not have the form"),
        (
            ["--cluster_spec=a|h:1;h:99999", "--job_name=a"],
            "'h:99999' does not have the form",
        ),
        (["--cluster_spec=a|http://h:1", "--job_name=a"], "write 'h:1', without http://"),
        (["--cluster_spec=a|::1:2222", "--job_name=a"], "needs brackets, as in '[::1]:2222'"),
        (
            ["--cluster_spec=a|localhost:1,b|127.0.0.1:1", "--job_name=a"],
            "two tasks have the same address 127.0.0.1:1, since localhost:1 is the same one",
        ),
        (["--cluster_spec=a|h:1,a|h:2", "--job_name=a"], "names the job a twice"),
        (["--cluster_spec=a|h:1,b|h:1", "--job_name=a"], "two tasks have the same address h:1"),
        ([ONE, "--job_name=ps"], "the cluster has the jobs local, not 'ps'"),
        ([ONE, "--job_name=local", "--task_index=1"], "there is no local 1; the last one is 0"),
        ([ONE, "--job_name=local", "--task_index=-1"], "--task_index: must be a whole number"),
        ([ONE, "--job_name=local", "--port=1"], "unknown argument --port=1"),
    ],
)
def test_a_bad_command_line_gives_a_one_line_error(flags, words):
    done = subprocess.run(command(*flags), cwd=ROOT, env=environment(), text=True,
                          capture_output=True, timeout=seconds(60))  # fmt: skip
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert words in done.stderr


@pytest.mark.slow("starts servers and a client")
def test_a_port_in_use_gives_a_one_line_error(serve):
    [port] = network.free_ports(1, private=False)
    first = serve(f"local|localhost:{port}", "local")
    assert "all interfaces" in first.stdout.readline()
    done = subprocess.run(
        command(f"--cluster_spec=local|localhost:{port}", "--job_name=local"), cwd=ROOT,
        env=environment(), text=True, capture_output=True, timeout=seconds(60))  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: port {port} is in use")
    assert done.stderr.count("\n") == 1
