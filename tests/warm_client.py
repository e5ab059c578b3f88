"""Stands for a Python that `warm.py` has forked: passes on what it was started with, and signals,
and ends as the fork does. If it is killed, so is the fork.

    python -IS warm_client.py FOLDER FLAGS-OF-PYTHON

What needs no TensorFlow is started in the usual way instead.
"""

import contextlib
import marshal
import os
import signal
import socket
import sys

PASSED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def needs_tensorflow(flags: list[str]) -> bool:
    """Whether Python is to run a script, a kernel, or a program that uses `common.cluster`; not
    with a library that only a new process loads. The launcher needs only other packages; but it is
    one of these, too, where a test says so."""
    if "LD_PRELOAD" in os.environ:
        return False
    flags = flags[1:] if flags[:1] == ["-u"] else flags
    kind, what = [*flags, "", ""][:2]
    return (
        kind.endswith(".py")
        or (kind.endswith("/common/launch") and "WARM_LAUNCHER" in os.environ)
        or (kind, what) == ("-m", "ipykernel_launcher")
        or (kind == "-c" and what.startswith("from common import cluster"))
    )


def main(folder: str, *flags: str) -> int:
    python = f"{folder}/bin/python"
    if not needs_tensorflow([*flags]):
        # Python takes its own path, and so its packages, from argv[0].
        os.execv(os.path.realpath(sys.executable), [python, *flags])
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.connect(f"{folder}/socket")
    spaces = [os.open(f"/proc/self/ns/{name}", os.O_RDONLY) for name in ("user", "net")]
    umask = os.umask(0o777)
    os.umask(umask)
    told = {
        "flags": [*flags],
        "cwd": os.getcwd(),
        "env": dict(os.environ),
        "umask": umask,
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "cores": [*os.sched_getaffinity(0)],
        "ignored": [int(s) for s in PASSED if signal.getsignal(s) == signal.SIG_IGN],
    }

    def pass_on(number, _):
        with contextlib.suppress(OSError):  # it has just ended
            server.send(str(number).encode())

    for number in PASSED:
        signal.signal(number, pass_on)
    socket.send_fds(server, [marshal.dumps(told)], [0, 1, 2, *spaces])
    for fd in (0, 1, 2, *spaces):
        os.close(fd)  # who reads from a pipe waits until all that could write have closed it
    status = int(server.recv(100) or signal.SIGKILL)
    if not os.WIFSIGNALED(status):
        return os.waitstatus_to_exitcode(status)
    number = os.WTERMSIG(status)
    if number in PASSED:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    return 128 + number


if __name__ == "__main__":
    os._exit(main(*sys.argv[1:]))
