"""What runs on a host, at the other end of an ssh connection.

    python remote.py keep EXAMPLE PORTS                    describes the host, keeps a folder
    python remote.py task RUN NAME RESTARTS CHECKPOINTS SCRIPT [FLAGS]          runs one task

`keep` runs from the beginning to the end of a run. Its folder, RUN, holds what the host's tasks
write, so that a restarted task finds it; in the end, `keep` removes it. `task` sends what its task
writes while that runs. Both end when the launcher is gone.
"""

import contextlib
import fcntl
import json
import os
import queue
import select
import shutil
import signal
import socket
import sys
import tempfile
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import host

from common import fail
from common.launch.processes import Group, Process

SILENCE = 30  # seconds without a sign of life, one of which comes every 5 s


def wait_for_end() -> None:
    """Returns when the launcher is gone: stdin ends, or nothing arrives any more."""
    while select.select([0], [], [], SILENCE)[0] and os.read(0, 4096):
        pass


def locked(folder: Path, how: int) -> int:
    """Locks a folder, waiting for it if need be, until this process ends or closes the result."""
    opened = os.open(folder, os.O_RDONLY)
    fcntl.flock(opened, how)
    return opened


def keep(example: str, ports: str) -> None:
    """Prints what this host has and where its files of the run go, until the launcher is gone."""
    run = Path(tempfile.mkdtemp(prefix="distributed-tensorflow-"))
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    try:
        print(json.dumps(host.describe(example, int(ports)) | {"folder": str(run)}), flush=True)
        wait_for_end()
    finally:
        locked(run, fcntl.LOCK_EX)  # once its tasks have ended
        shutil.rmtree(run, ignore_errors=True)


def task(run: str, name: str, restarts: str, checkpoints: str, *command: str) -> int:
    """Runs a task and sends what it writes, and at last its exit code. Returns that.

    `checkpoints` is empty if they belong to the task's other results.
    """
    folder = Path(run, name)
    try:
        locked(folder.parent, fcntl.LOCK_SH)  # keeps `keep` from removing it
        folder.mkdir(exist_ok=True)
    except FileNotFoundError:
        fail(f"{socket.gethostname()} was out of reach for so long that it removed its files of "
             "this run: start the run again")  # fmt: skip
    # If the connection was cut, the task's previous process runs until it hears of that.
    locked(folder, fcntl.LOCK_EX)
    (folder / "log").unlink(missing_ok=True)
    own = ["--results", folder, "--checkpoint_dir", checkpoints or folder / "checkpoints"]
    job, _, index = name.rpartition("-")
    words = [sys.executable, *command, *map(str, own)]
    process = Process(job, int(index), words, folder / "log")
    process.restarts = int(restarts)
    group = Group()

    def end():
        wait_for_end()
        group.kill()
        os._exit(1)

    try:
        group.start(process, os.environ | {"PYTHONUNBUFFERED": "1"})
        threading.Thread(target=end, daemon=True).start()
        sent, code = {}, None
        while code is None:
            with contextlib.suppress(queue.Empty):
                _, code = group.exits.get(timeout=0.1)
            send(folder, sent, last=code is not None)
    finally:
        group.kill()
    return code


def send(folder: Path, sent: dict[str, int], last: bool) -> None:
    """Sends what is new in the files that only grow; with `last`, all other files, too.

    `sent`: how many bytes of each file were sent before.
    """
    paths = [Path(place, name) for place, _, names in os.walk(folder) for name in names]
    for path in sorted(paths, key=lambda path: path.name == "parameters.npz"):  # it means: complete
        if not path.name.startswith("."):
            name = str(path.relative_to(folder))
            grows = path.suffix == ".jsonl" or name == "log" or ".tfevents." in name
            if not (grows or last):
                continue
            at = sent.get(name, 0)
            with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
                file.seek(at)
                data = file.read()
                if path.suffix == ".jsonl":  # a restarted task cuts off half a line
                    data = data[: data.rfind(b"\n") + 1]
                if data or name not in sent:
                    frame({"name": name, "at": at}, data)
                sent[name] = at + len(data)


def frame(what: dict, data: bytes = b"") -> None:
    """Prints a line of JSON, then the data."""
    line = json.dumps(what | {"size": len(data)}).encode()
    sys.stdout.buffer.write(line + b"\n" + data)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    if sys.argv[1] == "keep":
        keep(*sys.argv[2:])
    else:
        code = 1
        try:
            code = task(*sys.argv[2:])
        except SystemExit as ended:
            code = ended.code
        finally:
            frame({"exit": code})
