"""For the notebooks: runs examples and reads what they measured, starts tasks in other processes,
shows code. Import it before TensorFlow to silence TensorFlow's start-up messages."""

import contextlib
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"  # hides errors about servers stopped on purpose

import matplotlib.pyplot as plt
import numpy as np
from IPython import get_ipython
from IPython.display import Markdown, display

from common.launch import plots, processes, record
from common.teach import quotes
from common.teach.draw import compare, diagram, overview  # noqa: F401 (for the notebooks)


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


with _silent_core():
    from common import cluster  # imports TensorFlow

for _name in ("http_proxy", "https_proxy"):  # gRPC uses a proxy even for localhost
    os.environ.pop(_name, None), os.environ.pop(_name.upper(), None)
os.environ.pop("FORCE_COLOR", None)  # set by the kernel; tables should be plain text
logging.getLogger("tensorflow").setLevel(logging.ERROR)
if get_ipython():  # plots.py draws to files; notebooks show figures inline
    get_ipython().run_line_magic("matplotlib", "inline")
plt.style.use(plots.STYLE)

ROOT = Path(__file__).resolve().parents[2]
_warned: list[bool] = []  # once is enough
_SCRATCH = tempfile.mkdtemp(prefix="notebook-")
# Removes it when the kernel's end of the pipe closes, for whatever reason; retries for slow tasks.
_REMOVE = """
import os, shutil, sys, time
sys.stdin.read()
for _ in range(100):
    shutil.rmtree(sys.argv[1], ignore_errors=True)
    if not os.path.exists(sys.argv[1]):
        break
    time.sleep(0.1)
"""
_REMOVER = subprocess.Popen([sys.executable, "-I", "-S", "-c", _REMOVE, _SCRATCH],
                            stdin=subprocess.PIPE, start_new_session=True)  # fmt: skip


class Run:
    """A finished run: what it wrote into its results folder."""

    def __init__(self, folder: Path, screen: str):
        self.folder, self.screen = folder, screen
        self.summary: dict = json.loads((folder / "summary.json").read_text())
        self.events: list[list[dict]] = record.read_events(folder, self.summary["workers"])
        self.evaluations: list[dict] = record.read_evaluations(folder)

    @property
    def parameters(self) -> list[np.ndarray]:
        """The final global parameters, in model order."""
        with np.load(self.folder / "parameters.npz") as file:
            return [file[name] for name in file.files]


def run(example: str, *flags, show: bool = True) -> Run:
    """Runs `bash EXAMPLE/run.sh flags` to the end and, if `show`, prints its table.

    If the kernel ends first, the run ends with it.

    Raises:
        RuntimeError: with the run's output, if it fails.
    """
    where = Path(tempfile.mkdtemp(prefix="run-", dir=_SCRATCH), "results")
    command = ["bash", f"{ROOT}/{example}/run.sh", "--plain", "--results", where]
    task = processes.Process(
        example, 0, [*map(str, [*command, *flags])], where.with_name("screen.txt")
    )
    group = processes.Group()
    try:
        group.start(task, os.environ | {"PYTHON": sys.executable})
        _, code = group.exits.get()
    finally:  # even if the reader interrupts the cell
        group.kill()
    text = task.log.read_text()
    if code:
        raise RuntimeError(f"{example} ended with exit code {code}:\n{text}")
    screen = re.sub(r"[;,]? *(logs and )?results in \S+", "", text)
    if show:
        print(f"$ bash {example}/run.sh", *flags)
        print(screen[screen.index("task ") :].rstrip())
    return Run(where, screen)


class Tasks:
    """The processes of a notebook's own cluster.

    They end at `stop()`, or when the notebook's kernel ends, for whatever reason.
    """

    def __init__(self):
        self._group = processes.Group()
        self._folder = Path(tempfile.mkdtemp(prefix="tasks-", dir=_SCRATCH))
        self._tasks: dict[str, processes.Process] = {}

    def start(self, name: str, *command, **env: str) -> processes.Process:
        """Starts Python with the arguments `command` (a script and its flags, `-m` and a module, or
        `-c` and a program), and adds `env` to its environment."""
        if command[0] == "-c":  # cluster.py imports TensorFlow in half the time
            program = str(command[1]).removeprefix("\n")
            command = ("-c", f"from common import cluster\n{program}", *command[2:])
        argv = [sys.executable, "-u", *map(str, command)]
        task = processes.Process(name, 0, argv, self._folder / f"{name}.log")
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        self._group.start(task, os.environ | {"PYTHONPATH": path} | env)
        self._tasks[name] = task
        return task

    def log(self, name: str) -> str:
        """What a task has printed so far."""
        return self._tasks[name].log.read_text(errors="replace")

    def wait_for(self, name: str, text: str = "", seconds: float = 60, count: int = 1) -> str:
        """Returns a task's log once it contains `text` `count` times or, without `text`, once the
        task has ended.

        Raises:
            TimeoutError: with the log, after `seconds`, or if the task ends without the text.
        """
        task, begun = self._tasks[name], time.monotonic()
        while time.monotonic() - begun < seconds:
            ended = task.popen.poll() is not None
            if self.log(name).count(text) >= count if text else ended:
                return self.log(name)
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
    from common.launch import by_hand

    if not _warned:
        by_hand.warn("the servers of this notebook are")
        _warned.append(True)


def free_addresses(count: int) -> list[str]:
    """`localhost:port` of free ports on this machine, for the servers of a notebook."""
    from common.launch import network

    warn_once()
    return [f"localhost:{port}" for port in network.free_ports(count, private=False)]


def cores() -> int:
    """The processor cores that this process may use."""
    return cluster.cores()
