"""A warm Python does what Python does, only sooner."""

import contextlib
import functools
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest
import warm
from conftest import eventually

from common.launch import network

pytestmark = [
    pytest.mark.skipif(not warm.POSSIBLE, reason="needs Linux and a virtual environment"),
    pytest.mark.slow("starts a process that imports TensorFlow"),
]
IMPORTS = "from common import cluster\n"  # for programs that say so, the Python is warm


@pytest.fixture(scope="module")
def started():
    with tempfile.TemporaryDirectory() as folder, warm.python(Path(folder)) as (python, server):
        yield python, psutil.Process(server.pid)


def said(python, tmp_path, program: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [python, "-c", IMPORTS + program, "one", "two words"], input="typed", text=True,
        capture_output=True, cwd=tmp_path, env=os.environ | {"OWN": "mine"}, check=False,
    )  # fmt: skip
    # Not what TensorFlow says while it is imported.
    own = re.sub(r"^([IWE]0000 |WARNING: All log|To enable).*\n", "", done.stderr, flags=re.M)
    return done.returncode, done.stdout, own


@pytest.mark.parametrize(
    "program",
    [
        "import os, sys; print(sys.argv, os.getcwd(), os.environ['OWN'], sys.stdin.read())",
        "import sys; sys.exit(3)",
        "import sys; sys.exit('one sentence')",
        "print('half a line', end=''); raise SystemExit",
        "def f():\n    return {}['key']\nf()",
        "raise KeyboardInterrupt",
        "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
        "import atexit; atexit.register(print, 'the end')",
        "import threading; threading.Timer(0.2, print, ['later']).start()",
        "import os; print(os.umask(0), os.nice(0), sorted(os.sched_getaffinity(0)))",
        "print(__name__, __import__('__main__').__dict__ is globals())",
    ],
)
def test_a_program_says_and_returns_the_same(started, tmp_path, program):
    assert said(started[0], tmp_path, program) == said(sys.executable, tmp_path, program)


def test_a_script_finds_its_neighbours_and_prints_at_once(started, tmp_path):
    (tmp_path / "neighbour.py").write_text("NUMBER = 5\n")
    script = tmp_path / "script.py"
    script.write_text(
        "import neighbour, sys\nprint(neighbour.NUMBER, __file__, *sys.argv)\n"
        "print('tensorflow' in sys.modules)\nsys.stdin.read()\n"
    )
    with subprocess.Popen(
        [started[0], "-u", str(script), "flag"], cwd="/", text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout.readline() == f"5 {script} {script} flag\n"
        assert process.stdout.readline() == "True\n"  # it came although the script goes on
        process.stdin.close()
        assert process.wait() == 0


def test_a_launcher_is_a_fork_where_a_test_says_so(started, tmp_path, monkeypatch):
    folder = tmp_path / "common" / "launch"
    folder.mkdir(parents=True)
    (folder / "__main__.py").write_text(
        "import sys\npath = dict.fromkeys(sys.path)  # a fork may have a folder twice\n"
        "print(*sys.argv, *path, __name__, 'tensorflow' in sys.modules)\n"
    )

    def printed(python) -> str:
        said = subprocess.run([python, folder, "--flag"], cwd="/", text=True, check=True,
                              stdout=subprocess.PIPE).stdout  # fmt: skip
        return said.replace(str(started[0].parents[1]), sys.prefix)

    assert printed(started[0]) == printed(sys.executable)
    monkeypatch.setenv("WARM_LAUNCHER", "1")
    assert printed(started[0]) == printed(sys.executable).replace("False", "True")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_it_and_its_fork(started, number):
    python, server = started
    program = f"{IMPORTS}import signal; print('waits', flush=True); signal.pause()"
    with subprocess.Popen(
        [python, "-c", program], text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout.readline() == "waits\n"
        assert len(server.children()) == 1
        process.send_signal(number)
        assert process.wait() == -number
    assert eventually(lambda: not server.children(), 5)


def test_what_it_held_is_free_once_it_was_killed(started, tmp_path):
    """A run restarts a killed task at once, on the same port. Here the server is as slow as on a
    busy machine: it learns of the kill and of the restart at the same time."""
    python, server = started
    hold = (
        f"{IMPORTS}import fcntl, time\nfile = open('held', 'w')\n"
        "fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "memory = b'x' * 2**30  # so that it takes longer to die\n"
        "print('holds', flush=True)\ntime.sleep(1000)"
    )

    def start():
        return subprocess.Popen([python, "-c", hold], text=True, stdout=subprocess.PIPE,
                                cwd=tmp_path)  # fmt: skip

    with contextlib.ExitStack() as stack:
        process = stack.enter_context(start())
        for _ in range(5):
            assert process.stdout.readline() == "holds\n"
            server.suspend()
            process.kill()
            process.wait()
            process = stack.enter_context(start())
            assert eventually(functools.partial(connected, process.pid), 10)
            server.resume()
        assert process.stdout.readline() == "holds\n"
        process.kill()


def connected(pid: int) -> bool:
    """Whether a client has a socket, the only one that it opens."""
    links = Path(f"/proc/{pid}/fd").iterdir()
    return any(os.readlink(link).startswith("socket:") for link in links)


def test_with_a_library_to_preload_it_is_not_a_fork(started, monkeypatch):
    """The loader reads the variable only when a program starts."""
    monkeypatch.setenv("LD_PRELOAD", "libm.so.6")
    command = [started[0], "-c", f"{IMPORTS}import os; print(os.getppid())"]
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, check=True)
    assert int(done.stdout) == os.getpid()


def test_it_is_in_the_network_of_the_process_that_starts_it(started):
    if why := network.can_be_private():
        pytest.skip(why)
    ask = "import os; print(os.readlink('/proc/self/ns/net'))"
    enter = (
        "import subprocess, sys\n"
        "from common.launch import network\n"
        "network.choose('private', print)\n"
        f"{ask}\nsys.stdout.flush()\n"
        "subprocess.run([sys.argv[1], '-c', sys.argv[2]], check=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", enter, started[0], IMPORTS + ask], text=True, capture_output=True,
        check=True,
    )  # fmt: skip
    first, second = done.stdout.split()
    assert first == second != os.readlink("/proc/self/ns/net")


def test_forks_draw_different_random_numbers(started, tmp_path):
    program = "import random, numpy; print(random.random(), numpy.random.rand())"
    drawn = {said(started[0], tmp_path, program)[1] for _ in range(3)}
    assert len(drawn) == 3
