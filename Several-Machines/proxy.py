"""Stands for a task that runs on another host: the launcher starts, watches and kills this process.

    python proxy.py SSH HOST AT RESULTS RUN NAME CHECKPOINTS SCRIPT [FLAGS]

It prints what the task prints, writes what it writes into RESULTS, and ends as it ends. If the
connection is lost, it ends by SIGHUP: the launcher restarts the task.
"""

import json
import os
import resource
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from connection import connect, keep_alive

from common import fail
from common.record import faults, results


def main(ssh: str, host: str, at: str, where: str, run: str, name: str, *words: str) -> int:
    """Runs the task on the host; returns its exit code, -N if signal N killed it."""
    restarts = os.environ["TASK_RESTARTS"]
    connection = connect(ssh, host, at, ["task", run, name, restarts, *words])
    keep_alive(connection)
    faults.folders.append(where)  # the error for a full disk names it
    screen, known = sys.stdout.buffer, False
    for line in connection.stdout:
        if not line.startswith(b"{"):  # from the start-up files of the host's shell
            screen.write(line)
            continue
        if not line.endswith(b"\n"):
            break  # the connection was cut
        known, what = True, json.loads(line)
        data = connection.stdout.read(what["size"])
        if "exit" in what:
            connection.wait()
            return what["exit"]
        if len(data) < what["size"]:
            break
        if what["name"] == "log":
            screen.write(data)
            screen.flush()
        else:
            path = Path(where, what["name"])
            if ".." in path.parts or not path.is_relative_to(where):  # others may be on the host
                fail(f"host {host} sends {what['name']}, which is not in its results folder")
            write(path, what["at"], data)
    # "> ": the screen shows it.
    print(f"> the connection to host {host} was lost" if known else
          f"> host {host} cannot be reached: check `ssh {host} true`", flush=True)  # fmt: skip
    return -signal.SIGHUP


def write(path: Path, at: int, data: bytes) -> None:
    """Writes data at byte `at` of a file, which appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if at == 0:
        results.write(path, lambda file: file.write(data))
        return
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(data)


if __name__ == "__main__":
    code = main(*sys.argv[1:])
    if code < 0:
        sys.stdout.flush()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core of this process tells nothing
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)
