"""An ssh connection to a host, on which `remote.py` runs there."""

import contextlib
import shlex
import subprocess
import threading
import time

# No password prompts; a dead host is noticed after 30 s; no second use of forwarded ports.
OPTIONS = {"BatchMode": "yes", "ConnectTimeout": 10, "ServerAliveInterval": 10,
           "ServerAliveCountMax": 3, "ClearAllForwardings": "yes", "ControlMaster": "no",
           "LogLevel": "ERROR"}  # fmt: skip
BEAT = 5  # seconds between two signs of life

# Any shell can start this. What set-up prints must not get between remote.py's own lines.
SCRIPT = """cd {at} 2>/dev/null && [ -f common/setup.sh ] || {{
  echo "error: there is no collection in "{at}": clone it there, or name its folder with --at"
  exit 2
}}
source common/setup.sh >&2
exec "$PYTHON" Several-Machines/remote.py {words}"""


def connect(ssh: str, host: str, at: str, words: list, **streams) -> subprocess.Popen:
    """Starts `remote.py` with these arguments on a host.

    Args:
        ssh: the command, such as `ssh -F config`.
        host: a name that it knows.
        at: the collection's folder on that host.
        words: the arguments.
        streams: for `Popen`.
    """
    script = SCRIPT.format(at=shlex.quote(at), words=shlex.join(map(str, words)))
    options = [f"-o{name}={value}" for name, value in OPTIONS.items()]
    return subprocess.Popen(
        [*shlex.split(ssh), "-T", *options, host, f"bash -c {shlex.quote(script)}"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, **streams,
    )  # fmt: skip


def keep_alive(*connections: subprocess.Popen) -> None:
    """Tells `remote.py` now and then that this process lives: if the network is cut, or this
    machine loses power, the host would not notice for hours."""

    def beat():
        while True:
            for connection in connections:
                with contextlib.suppress(OSError, ValueError):  # it has ended
                    connection.stdin.write(b"\n")
                    connection.stdin.flush()
            time.sleep(BEAT)

    threading.Thread(target=beat, daemon=True).start()
