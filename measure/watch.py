"""Watches what this process has started, from outside: its processes, its ports."""

import contextlib
import os
import re
import sys
import time
import uuid
from pathlib import Path

from machine import seconds

ROOT = Path(__file__).resolve().parents[1]
MARK = f"DISTRIBUTED_TF_WATCHED={uuid.uuid4()}"  # in the environment of every process started


class Unavailable(Exception):
    """This machine lacks what an instrument or a test needs; says what."""


def environment(**more: str) -> dict[str, str]:
    """This process's environment plus the mark, and this interpreter for every run.sh."""
    name, value = MARK.split("=")
    return os.environ | {name: value, "PYTHON": sys.executable} | more


def processes(mark: str = MARK) -> dict[int, str]:
    """pid -> command line of every process with the mark, including this one's children."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            marked = mark.encode() in (folder / "environ").read_bytes().split(b"\0")
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            if marked and state not in "ZX":
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                found[int(folder.name)] = command
        except OSError:  # gone, or not readable
            continue
    return found


def task_pid(where: Path, job: str, index: int) -> int:
    """The process of one task of the run that writes its results to `where`."""
    results = rf"--results {re.escape(str(where))} "
    pattern = re.compile(rf"\w+\.py .*{results}.*--job_name {job} --task_index {index}\b")
    (pid,) = [pid for pid, command in processes().items() if pattern.search(command)]
    return pid


def first(words: str) -> None:
    """Those processes with the words in their command line get the usual priority, 0, again, where
    they were started with less: as `os.nice`, but for all their threads. Only root may do that."""
    for pid in [pid for pid, command in processes().items() if words in command]:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            for thread in os.listdir(f"/proc/{pid}/task"):
                if os.getpriority(os.PRIO_PROCESS, int(thread)) > 0:
                    os.setpriority(os.PRIO_PROCESS, int(thread), 0)


def listening() -> dict[str, int]:
    """inode -> port of this network's listening TCP sockets; empty without /proc (macOS)."""
    found = {}
    for path in Path("/proc/net").glob("tcp*"):
        for line in path.read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                found[fields[9]] = int(fields[1].rpartition(":")[2], 16)
    return found


def held(sockets: dict[str, int]) -> set[int]:
    """The ports of those sockets that no visible process holds; `processes` finds the others."""
    if not sockets:
        return set()
    others = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # gone, or not readable
            for link in os.listdir(folder / "fd"):
                with contextlib.suppress(OSError):
                    others.add(os.readlink(folder / "fd" / link))
    return {port for inode, port in sockets.items() if f"socket:[{inode}]" not in others}


def eventually(condition, usual: float) -> bool:
    """Whether `condition()` becomes true within `usual` seconds on a usual machine."""
    end = time.monotonic() + seconds(usual)
    while not (holds := condition()) and time.monotonic() < end:
        time.sleep(0.05)
    return bool(holds)
