"""A Python that has imported TensorFlow already: each start is a fork of one process.

Importing TensorFlow is most of what a short run costs, and the notebooks start hundreds of tasks.
`python()` gives the path of a Python for them. What runs is the same script, in a process of its
own; it only finds TensorFlow imported, as gunicorn's `--preload` does for a server's workers.

    python warm.py FOLDER    serves forks until its standard input is closed
"""

import atexit
import contextlib
import ctypes
import gc
import importlib
import marshal
import os
import runpy
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import types
from pathlib import Path

# It passes on Linux namespaces, and takes its packages from a virtual environment.
POSSIBLE = sys.platform == "linux" and sys.prefix != sys.base_prefix
CLIENT = Path(__file__).with_name("warm_client.py")
IMPORTED = (  # what takes long, and starts no thread of its own
    "tensorflow.compat.v1",
    "tensorboard.plugins.hparams.summary_v2",
    "matplotlib.pyplot",
    "matplotlib.backends.backend_agg",
    "matplotlib_inline.backend_inline",
    "PIL.PngImagePlugin",
    "ipykernel.kernelapp",
    "ipykernel.debugger",
    "debugpy.server.api",
    "ipywidgets",
    "psutil",
    "rich.console",
    "rich.progress",
    "rich.table",
)
NAMESPACES = ("user", "net")  # a run's tasks are in its private network


@contextlib.contextmanager
def python(folder: Path):
    """Starts the server and yields the path of the Python that it serves, `FOLDER/bin/python`, and
    its own `subprocess.Popen`."""
    program, home = folder / "bin" / "python", Path(sys.prefix)
    program.parent.mkdir(parents=True)
    for name in ("pyvenv.cfg", "lib", "share"):  # with these, Python finds its packages
        (folder / name).symlink_to(home / name)
    real = os.path.realpath(sys.executable)
    usual = f'[ "$1" = -I ] && exec {shlex.quote(real)} "$@"\n'  # it needs no packages
    command = shlex.join([real, "-IS", str(CLIENT), str(folder)])
    program.write_text(f'#!/bin/sh\n{usual}exec {command} "$@"\n')
    program.chmod(0o755)
    with subprocess.Popen(
        [program, str(Path(__file__)), str(folder)],
        executable=real,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as server:
        try:
            assert server.stdout.read(1), "the server of warm Pythons has not started"
            yield program, server
        finally:
            server.stdin.close()  # then it ends


def load() -> None:
    """Imports TensorFlow as `common/cluster.py` does."""
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    for name in IMPORTED:
        importlib.import_module(name)
    del os.environ["TF_USE_LEGACY_KERAS"]
    gc.freeze()  # no fork copies them by collecting garbage


def serve(listener: socket.socket) -> tuple[dict, list[int]]:
    """Forks a process for each client; returns only in these, with what the client was started
    with, and its files."""
    selector, ends = selectors.DefaultSelector(), socket.socketpair()
    clients: dict[socket.socket, int] = {}  # and the process of each
    for end in ends:
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(ends[1].fileno())
    for source in (listener, ends[0], sys.stdin):
        selector.register(source, selectors.EVENT_READ)
    while True:
        # New clients last: what a killed one held, such as a port, is free before the next starts.
        ready = [key.fileobj for key, _ in selector.select()]
        for source in sorted(ready, key=lambda source: source is listener):
            if source is sys.stdin:
                for pid in clients.values():
                    os.kill(pid, signal.SIGKILL)
                os._exit(0)
            elif source is listener:
                client, _ = listener.accept()
                message, files, _, _ = socket.recv_fds(client, 1 << 20, 8)
                pid = os.fork() if message else None  # else the client was killed at once
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    for each in (selector, *ends, listener, client, *clients):
                        each.close()
                    return marshal.loads(message), files
                for file in files:
                    os.close(file)
                if pid:
                    clients[client] = pid
                    selector.register(client, selectors.EVENT_READ)
            elif source is ends[0]:
                source.recv(1000)
                for client, pid in [*clients.items()]:
                    ended, status = os.waitpid(pid, os.WNOHANG)
                    if ended:
                        with contextlib.suppress(OSError):  # the client was killed
                            client.send(str(status).encode())
                        selector.unregister(client)
                        client.close()
                        del clients[client]
            elif source in clients:  # else it has ended meanwhile
                number = source.recv(100)
                os.kill(clients[source], int(number or signal.SIGKILL))
                if not number:  # the client was killed
                    os.waitpid(clients.pop(source), 0)
                    selector.unregister(source)
                    source.close()


def become(told: dict, files: list[int]) -> None:
    """Makes this fork what Python is when it starts in the client's place."""
    enter(files[3:])
    for number, file in enumerate(files[:3]):
        os.dup2(file, number)
    for file in files:
        os.close(file)
    os.chdir(told["cwd"])
    os.umask(told["umask"])
    os.sched_setaffinity(0, told["cores"])
    os.setpriority(os.PRIO_PROCESS, 0, told["nice"])
    os.environ.clear()
    os.environ.update(told["env"])
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number in told["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    import numpy as np

    np.random.seed()  # else, all forks draw the same


def enter(namespaces: list[int]) -> None:
    """Moves this process into the namespaces that it is not in yet."""
    libc = ctypes.CDLL(None, use_errno=True)
    for name, file in zip(NAMESPACES, namespaces):
        same = os.path.samestat(os.fstat(file), os.stat(f"/proc/self/ns/{name}"))
        if not same and libc.setns(file, 0):
            raise OSError(ctypes.get_errno(), f"setns: {name}")


def run(flags: list[str]) -> None:
    """Does what Python does with these flags."""
    if unbuffered := flags[0] == "-u":
        flags = flags[1:]
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=stream.isatty(), write_through=unbuffered)
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    more = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    kind, rest = flags[0], flags[1:]
    script = not kind.startswith("-")
    sys.argv = flags if script else [kind, *rest[1:]]
    first = os.path.dirname(os.path.abspath(kind)) if script else os.getcwd()
    sys.path[:0] = [first, *filter(None, more)]
    if os.path.isdir(kind):  # of a `__main__.py`; it becomes the first of the path
        del sys.path[0]
        runpy.run_path(kind, run_name="__main__")
        return
    if kind == "-m":
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        return
    text = Path(kind).read_bytes() if script else rest[0]
    if script:
        main.__file__ = kind
    exec(compile(text, kind if script else "<string>", "exec"), main.__dict__)


def fail(error: BaseException) -> None:
    """Does what Python does after an error, with a traceback that begins with the script."""
    traceback = error.__traceback__
    while traceback and traceback.tb_frame.f_code.co_filename in (__file__, runpy.__file__):
        traceback = traceback.tb_next
    sys.excepthook(type(error), error.with_traceback(traceback), traceback)
    if isinstance(error, KeyboardInterrupt):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)


def leave(code: int | str | None) -> None:
    """Ends without tidying up, which would copy the memory of all that was imported."""
    if isinstance(code, str):
        print(code, file=sys.stderr)
        code = 1
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # closed, or nobody reads it
            stream.flush()
    os._exit((code or 0) & 0xFF)


if __name__ == "__main__":
    code: int | str | None = 0
    atexit.register(lambda: leave(code))  # after all others, since it is the first
    load()
    sys.path.pop(0)  # this folder
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as waiting:
        waiting.bind(f"{sys.argv[1]}/socket")
        waiting.listen(100)
        print("ready", flush=True)
        started_with = serve(waiting)
    become(*started_with)
    try:
        run(started_with[0]["flags"])
    except SystemExit as end:
        code = end.code
    except BaseException as error:
        code = 1
        fail(error)
