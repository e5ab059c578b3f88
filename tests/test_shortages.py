"""Memory that runs out and a current directory that was deleted: one line names what is missing.

A full disk: `test_full_disk.py`.
"""

import errno
import signal
import subprocess
import sys

import pytest
from conftest import ROOT, environment
from machine import seconds

from common.launch import network
from common.launch.processes import Process
from common.record import faults

GONE = "the current directory has been deleted: change to another one and start again"
NO_MEMORY = [
    MemoryError(),
    OSError(errno.ENOMEM, "in other words"),
    OSError("Cannot allocate memory"),
    RuntimeError("OOM when allocating tensor with shape[1437,2147483647]"),
    RuntimeError("Unable to allocate 8.00 GiB for an array with shape (1073741824,)"),
    RuntimeError("mmap error"),
    RuntimeError("can't start new thread"),
    ImportError("libtensorflow_cc.so.2: failed to map segment from shared object"),
]


def from_(error: Exception, cause: Exception | None, context: Exception | None) -> Exception:
    error.__cause__, error.__context__ = cause, context
    return error


@pytest.mark.parametrize("error", NO_MEMORY, ids=repr)
def test_a_lack_of_memory_is_recognised(error):
    """Also if it is the cause of another error, or if another one happened while it was handled."""
    for found in (error, from_(ValueError("x"), error, None), from_(KeyError("x"), None, error)):
        assert faults.sentence(found) == faults.MORE_MEMORY


@pytest.mark.parametrize("error", [
    None, ValueError("x"), OSError(errno.EACCES, "Permission denied"), FileNotFoundError("x"),
    KeyboardInterrupt("Cannot allocate memory"),
])  # fmt: skip
def test_other_errors_are_not_the_machines(error):
    assert faults.sentence(error) == ""


def test_a_deleted_directory_is_recognised(tmp_path, monkeypatch):
    """Whatever file cannot be found; a missing file alone is another error."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert faults.no_directory() == ""
    (tmp_path / "here").rmdir()
    assert faults.no_directory() == faults.sentence(FileNotFoundError("x")) == GONE
    assert faults.sentence(from_(ValueError("x"), FileNotFoundError("x"), None)) == GONE


@pytest.mark.parametrize(("code", "said"), [
    ("bytearray(1 << 62)", f"error: {faults.MORE_MEMORY}"),
    ("os.mkdir('x'); os.chdir('x'); os.rmdir('../x'); os.getcwd()", f"error: {GONE}"),
    ("1 / 0", "ZeroDivisionError: division by zero"),
])  # fmt: skip
def test_a_script_ends_with_one_line(tmp_path, code, said):
    """At once, since a normal exit would write more. Any other error keeps its traceback."""
    code = f"import atexit, os, common; atexit.register(print, 'more'); {code}"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True,
                          text=True, env=environment(PYTHONPATH=str(ROOT)))  # fmt: skip
    one = said.startswith("error: ")
    assert (done.returncode, done.stdout) == ((2, "") if one else (1, "more\n"))
    lines = done.stderr.splitlines()
    assert lines[-1] == said and (len(lines) == 1) == one


@pytest.mark.parametrize(("code", "log", "words"), [
    (-signal.SIGABRT, "what():  std::bad_alloc", faults.MORE_MEMORY),
    (-signal.SIGABRT, "F0000 thread.cc:52] pthread_create() failed", faults.MORE_MEMORY),
    (-signal.SIGABRT, "F0000 check.cc:1] Check failed: 1 == 2", ""),
    (-signal.SIGKILL, "what():  std::bad_alloc", ""),
])  # fmt: skip
def test_an_aborted_task_is_not_restarted_if_its_log_shows_why(tmp_path, code, log, words):
    """C++ code that gets no memory ends its process with SIGABRT."""
    task = Process("worker", 0, [], tmp_path / "log")
    task.log.write_text(f"[worker 0] step 1  loss 2.3\n{log}\n")
    task.exit_code = code
    assert task.sentence() == (f"error: {words}" if words else "")


@pytest.mark.slow("imports TensorFlow")
def test_a_task_started_by_hand_in_a_deleted_directory(tmp_path):
    """It says so in its last line."""
    (port,) = network.free_ports(1, private=False)
    command = 'mkdir x && cd x && rmdir ../x && exec "$@"'
    task = [sys.executable, ROOT / "HogWild" / "worker.py", "--worker_hosts", f"localhost:{port}"]
    done = subprocess.run(
        ["bash", "-c", command, "-", *task, "--results", tmp_path / "results"], cwd=tmp_path,
        capture_output=True, text=True, env=environment(), timeout=seconds(60),
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[-1] == f"error: {GONE}"
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the address space")
def test_a_task_started_by_hand_with_too_little_memory(tmp_path):
    """TensorFlow does not fit into it."""
    command = 'ulimit -v 1000000; exec "$@"'
    task = [sys.executable, ROOT / "Non-Distributed-Setup" / "train.py"]
    done = subprocess.run(
        ["bash", "-c", command, "-", *task, "--results", tmp_path / "results"],
        capture_output=True, text=True, env=environment(), timeout=seconds(60),
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1] == f"error: {faults.MORE_MEMORY}"
    assert "Traceback" not in done.stderr and not any(tmp_path.iterdir())
