"""Starts and watches the processes of a run, and leaves none behind, whatever happens."""

import contextlib
import ctypes
import math
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

from common.record import faults

# The guard leads the process group of all tasks. When the launcher ends, for whatever reason, the
# pipe to the guard closes; the guard removes the tasks' temporary files and kills the group, itself
# included. In case somebody kills the guard, Linux also kills each task when the launcher ends.
_GUARD = """import os, sys; sys.stdin.read()
import shutil; shutil.rmtree(sys.argv[1], True); os.killpg(0, 9)"""
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class Process:
    """One task's process, which may be restarted."""

    def __init__(self, job: str, index: int, command: list[str], log: Path):
        self.job, self.index, self.command, self.log = job, index, command, log
        self.restarts = 0
        self.restart_reasons: list[str] = []  # how it ended before each restart
        self.exit_code: int | None = None
        self.popen: subprocess.Popen | None = None
        self._stopped_at: float | None = None

    @property
    def name(self) -> str:
        return f"{self.job} {self.index}"

    def log_restart(self) -> None:
        """If it is to be restarted, writes the reason to its log."""
        if not self.restart_reasons:
            return
        with contextlib.suppress(OSError), open(self.log, "a+b") as log:  # OSError: a full disk
            log.seek(max(0, log.tell() - 1))
            rest = b"\n" if log.read() not in (b"", b"\n") else b""  # after half a line
            why = f"run.sh: restart {self.restarts}: this task {self.restart_reasons[-1]}\n"
            log.write(rest + why.encode())

    def last_lines(self, count: int = 15) -> str:
        """The end of its log; only the traceback, if a Python error ended it."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        starts = [i for i, text in enumerate(lines) if text.startswith("Traceback (most recent")]
        if self.exit_code == 1 and starts:
            start = starts[-1]
            ends = [
                i
                for i, text in enumerate(lines[start + 1 :], start + 1)
                if text and not text.startswith((" ", "Traceback"))
            ]
            return "\n".join(lines[start : self._end(lines, ends[0] if ends else len(lines)) + 1])
        return "\n".join(lines[-count:])

    @staticmethod
    def _end(lines: list[str], first: int) -> int:
        """The index of the last line of an error's message, before TensorFlow's log lines."""
        noise = ("WARNING:", "I0", "W0", "E0", "20")
        end = first
        while end + 1 < len(lines) and not lines[end + 1].startswith(noise):
            end += 1
        return end

    def stands_still(self) -> bool:
        """True, once, after it has been suspended for 10 s."""
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
            if psutil.Process(self.popen.pid).status() != psutil.STATUS_STOPPED:
                self._stopped_at = None
            elif self._stopped_at is None:
                self._stopped_at = time.monotonic()
            elif time.monotonic() > self._stopped_at + 10:
                self._stopped_at = math.inf  # never again
                return True
        return False

    def sentence(self) -> str:
        """The error of a task that cannot go on: its own (exit code 2), or what its log shows."""
        text = self.log.read_text(encoding="utf-8", errors="replace")
        if self.exit_code == 2:
            said = [line for line in text.splitlines(True) if line.startswith("error: ")]
            # If the log lacks that line, or its end, the disk is full.
            whole = said and said[-1].endswith("\n")
            return said[-1].rstrip() if whole else f"error: {faults.full_disk()}"
        if self.exit_code == -signal.SIGABRT and faults.in_words(text):
            return f"error: {faults.MORE_MEMORY}"
        return ""


class Group:
    """All tasks of a run as one process group, which does not outlive the launcher."""

    def __init__(self):
        self.exits: queue.Queue[tuple[Process, int]] = queue.Queue()
        self._started: set[Process] = set()
        # For what tasks write besides their results, such as Python code that TensorFlow generates:
        # a killed task cannot remove it.
        self._temporary = ""
        with contextlib.suppress(OSError):  # a full disk: writing the results will report it
            self._temporary = tempfile.mkdtemp()
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _GUARD, self._temporary],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            preexec_fn=lambda: os.setpgid(0, 0),
        )

    def start(self, process: Process, env: dict[str, str]) -> None:
        """Starts or restarts a task; when it ends, `exits` gets the task and its exit code."""
        group, libc = self._guard.pid, ctypes.CDLL(None)

        def join():
            os.setpgid(0, group)
            if sys.platform == "linux":
                libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

        process.log_restart()
        with open(process.log, "ab") as log:
            process.exit_code = None
            process.popen = subprocess.Popen(
                process.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=env | {"TASK_RESTARTS": str(process.restarts), "TMPDIR": self._temporary},
                preexec_fn=join,
            )
        self._started.add(process)
        threading.Thread(target=self._wait, args=(process, process.popen), daemon=True).start()

    def _wait(self, process: Process, popen: subprocess.Popen) -> None:
        self.exits.put((process, popen.wait()))

    def kill(self) -> None:
        """Kills all remaining processes, including children of tasks, and waits until they end."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._guard.pid, signal.SIGKILL)
        self._guard.wait()
        for process in self._started:
            process.exit_code = process.popen.wait()
        shutil.rmtree(self._temporary, ignore_errors=True)
        self._guard.stdin.close()


def describe_exit(code: int) -> str:
    """`was killed by SIGKILL`, or `ended with exit code 1`."""
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"
