"""For the notebooks: runs examples and reads what they measured, starts tasks in other processes,
shows code. Import it before TensorFlow to silence TensorFlow's start-up messages."""

import contextlib
import logging
import os
import re
import sys
import tempfile
import time
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"  # hides errors about servers stopped on purpose

import matplotlib.pyplot as plt
from IPython import get_ipython
from IPython.display import Markdown, display

from common.launch import network, processes
from common.pictures import palette
from common.teach import quotes
from common.teach.draw import (  # noqa: F401 (for the notebooks)
    compare,
    diagram,
    learning,
    phases,
    picture,
    staleness,
    timeline,
)
from common.teach.play import play  # noqa: F401
from common.teach.recorded import recorded  # noqa: F401
from common.teach.running import Run, changed, run  # noqa: F401
from common.teach.scratch import ROOT, SCRATCH
from common.told import by_hand


@contextlib.contextmanager
def _silent_core():
    """Hides what TensorFlow's core writes to stderr during its import, at any log level."""
    stderr = os.dup(2)
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


def _import_cluster():
    """Imports `common.cluster`, and so TensorFlow, without a word; returns it."""
    with _silent_core():
        from common import cluster  # late: TensorFlow takes seconds, and many cells need none
    logging.getLogger("tensorflow").setLevel(logging.ERROR)  # its import sets another level
    return cluster


def _import_silently(cell: str) -> None:
    """Imports TensorFlow if the cell will. Many notebooks only start runs, without it."""
    if re.search(r"\btensorflow\b|from common import|from common.training", cell):
        _import_cluster()


for _name in ("http_proxy", "https_proxy"):  # gRPC uses a proxy even for localhost
    os.environ.pop(_name, None)
    os.environ.pop(_name.upper(), None)
os.environ.pop("FORCE_COLOR", None)  # set by the kernel; tables should be plain text
if shell := get_ipython():
    shell.run_line_magic("matplotlib", "inline")  # for a reader's own figures, without `picture`
    _import_silently(shell.user_ns["In"][-1])  # this cell
    shell.events.register("pre_run_cell", lambda cell: _import_silently(cell.raw_cell))
plt.style.use(palette.STYLE)

_warned: list[bool] = []  # once is enough


class Tasks:
    """The processes of a notebook's own cluster.

    They end at `stop()`, or when the notebook's kernel ends, for whatever reason.
    """

    def __init__(self):
        self._group = processes.Group()
        self._folder = Path(tempfile.mkdtemp(prefix="tasks-", dir=SCRATCH))
        self._tasks: dict[str, processes.Process] = {}

    def start(self, name: str, *command, **env: str) -> processes.Process:
        """Starts Python with the arguments `command` (a script and its flags, `-m` and a module, or
        `-c` and a program), and adds `env` to its environment."""
        if command[0] == "-c":  # cluster.py imports TensorFlow faster
            program = str(command[1]).removeprefix("\n")
            command = ("-c", f"from common import cluster\n{program}", *command[2:])
        argv = [sys.executable, "-u", *map(str, command)]
        task = processes.Process(name, 0, argv, self._folder / f"{name}.log")
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        no_keras = {"TF_USE_LEGACY_KERAS": "1"}  # it takes half of TensorFlow's import time
        self._group.start(task, os.environ | {"PYTHONPATH": path} | no_keras | env)
        self._tasks[name] = task
        return task

    def log(self, name: str) -> str:
        """What a task has printed so far."""
        return self._tasks[name].log.read_text(errors="replace")

    def wait_for(self, name: str, text: str = "", seconds: float = 60, count: int = 1) -> str:
        """Waits until a task has printed `text` `count` times, and returns the last line with it.
        Without `text`, waits until the task has ended, and returns its log.

        Raises:
            TimeoutError: with the log, after `seconds`, or if the task ends without the text.
        """
        task, begun = self._tasks[name], time.monotonic()
        while time.monotonic() - begun < seconds:
            ended = task.popen.poll() is not None
            log = self.log(name)
            if ended and not text:
                return log
            if not ended:  # `python -u` writes a line in pieces
                log = log[: log.rfind("\n") + 1]
            if text and log.count(text) >= count:  # below it, TensorFlow may have warned
                return [line for line in log.splitlines() if text in line][-1]
            if ended:
                break
            time.sleep(0.05)  # poll: a file does not announce that it has grown
        what = f"print {text!r} in time, or ended first" if text else "end in time"
        raise TimeoutError(f"{name} did not {what}:\n{self.log(name)}")

    def stop(self) -> None:
        """Ends all tasks that are still running; a second call does nothing."""
        self._group.kill()


def show(file: str, start: str, end: str = "") -> None:
    """Displays lines of a file such as `AGN/worker.py`; see `quotes.lines`."""
    display(Markdown(f"From `{file}`:\n\n{quotes.lines(ROOT / file, start, end)}"))


def show_diff(a: str, b: str) -> None:
    """Displays the differences between two scripts, without comments."""
    if not (ROOT / a).exists():
        print(f"{a} is missing: copy its folder too, to see the differences")
        return
    display(Markdown(quotes.diff(ROOT / a, ROOT / b, a, b)))


def warn_once() -> None:
    """Warns that anybody can use the servers of this notebook."""
    if not _warned:
        by_hand.warn("the servers of this notebook are")
        _warned.append(True)


def free_addresses(count: int) -> list[str]:
    """`localhost:port` of free ports on this machine, for the servers of a notebook."""
    warn_once()
    return [f"localhost:{port}" for port in network.free_ports(count, private=False)]


def cores() -> int:
    """The processor cores that this process may use."""
    return _import_cluster().cores()
