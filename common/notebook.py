"""For the notebooks: run an example and read what it measured, start tasks in other processes,
show code and draw processes. Import it before TensorFlow, which it quietens."""

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

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"  # also when a server that we stop on purpose is missed

import matplotlib.pyplot as plt
import numpy as np
from IPython import get_ipython
from IPython.display import Markdown, display

from common import plots, processes, quotes, results


@contextlib.contextmanager
def _silent_core():
    """TensorFlow's core writes a notice to stderr while it is imported, whatever the level."""
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

for _name in ("http_proxy", "https_proxy"):  # gRPC would ask a proxy the way to localhost
    os.environ.pop(_name, None), os.environ.pop(_name.upper(), None)
logging.getLogger("tensorflow").setLevel(logging.ERROR)
if get_ipython():  # figures appear below their cell; plots.py draws into files
    get_ipython().run_line_magic("matplotlib", "inline")
plt.style.use(plots.STYLE)

ROOT = Path(__file__).resolve().parents[1]


class Run:
    """A run that is over: what it left in its results folder."""

    def __init__(self, folder: Path, screen: str):
        self.folder, self.screen = folder, screen
        self.summary: dict = json.loads((folder / "summary.json").read_text())
        self.events: list[list[dict]] = results.read_events(folder, self.summary["workers"])
        self.evaluations: list[dict] = results.read_evaluations(folder)

    @property
    def parameters(self) -> list[np.ndarray]:
        """The final global parameters, in model order."""
        with np.load(self.folder / "parameters.npz") as file:
            return [file[name] for name in file.files]


def run(example: str, *flags, show: bool = True) -> Run:
    """Runs `bash EXAMPLE/run.sh flags` to its end and, if `show`, prints its table.

    Raises:
        RuntimeError: with what was on the screen, if it failed.
    """
    where = tempfile.mkdtemp(prefix="run-")
    command = ["bash", f"{ROOT}/{example}/run.sh", "--plain", "--results", where]
    env = os.environ | {"PYTHON": sys.executable}
    done = subprocess.run([*command, *map(str, flags)], text=True, env=env, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{example} ended with exit code {done.returncode}:\n{done.stdout}")
    screen = re.sub(r"[;,]? *(logs and )?results in \S+", "", done.stdout)
    if show:
        print(f"$ bash {example}/run.sh", *flags)
        print(screen[screen.index("task ") :].rstrip())
    return Run(Path(where), screen)


class Tasks:
    """Processes of a notebook's own cluster.

    They end with `stop()`, or with the notebook's kernel, however that ends.
    """

    def __init__(self):
        self._group = processes.Group()
        self._folder = Path(tempfile.mkdtemp(prefix="tasks-"))
        self._tasks: dict[str, processes.Process] = {}

    def start(self, name: str, *command, **env: str) -> processes.Process:
        """Starts Python with the arguments `command` (a script and its flags; `-m` and a module;
        or `-c` and a program); `env` is added to the environment."""
        argv = [sys.executable, "-u", *map(str, command)]
        task = processes.Process(name, 0, argv, self._folder / f"{name}.log")
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        self._group.start(task, os.environ | {"PYTHONPATH": path} | env)
        self._tasks[name] = task
        return task

    def log(self, name: str) -> str:
        """What a task has printed so far."""
        return self._tasks[name].log.read_text(errors="replace")

    def wait_for(self, name: str, text: str = "", seconds: float = 60) -> str:
        """Returns a task's log once it holds `text`; without `text`, once the task has ended.

        Raises:
            TimeoutError: with the log, after `seconds`, or if the task ends without the text.
        """
        task, begun = self._tasks[name], time.monotonic()
        while time.monotonic() - begun < seconds:
            ended = task.popen.poll() is not None
            if text in self.log(name) if text else ended:
                return self.log(name)
            if ended:
                break
            time.sleep(0.05)
        raise TimeoutError(f"{name} did not get to {text or 'its end'!r}:\n{self.log(name)}")

    def stop(self) -> None:
        """Ends all that is left; calling it twice does no harm."""
        self._group.kill()


def show(file: str, start: str, end: str = "") -> None:
    """Displays lines of a file of the collection, `AGN/worker.py`; see `quotes.lines`."""
    display(Markdown(f"From `{file}`:\n\n{quotes.lines(ROOT / file, start, end)}"))


def show_diff(a: str, b: str) -> None:
    """Displays what differs between two scripts, comments left out."""
    if not (ROOT / a).exists():
        print(f"{a} is not here: this folder was copied without its parent")
        return
    display(Markdown(quotes.diff(ROOT / a, ROOT / b, a, b)))


COLOURS = {"ps": plots.PS, "client": plots.ACCURACY, "data": plots.WAITING} | {
    f"worker {k}": plots.worker_colour(k) for k in range(8)
}


def diagram(
    boxes: dict[str, tuple[float, float, str]],
    arrows: list[tuple[str, str, str]] = (),
    size: tuple[float, float] = (8, 3),
    title: str = "",
) -> None:
    """Draws processes as boxes and what travels between them as arrows.

    Args:
        boxes: text (may have several lines) -> x, y of its centre (any unit, one is about a box's
            width and height) and its kind, a key of `COLOURS`.
        arrows: from which box, to which, and what is written beside it.
        size: width and height in inches.
        title: above the figure.
    """
    _, axes = plt.subplots(figsize=size, layout="constrained")
    at = {text: np.array(place[:2], float) for text, place in boxes.items()}
    for a, b, label in arrows:
        both = (b, a, label) in arrows or any(x == b and y == a for x, y, _ in arrows)
        axes.annotate(
            "", at[b], at[a],
            arrowprops={"arrowstyle": "-|>", "color": plots.NETWORK, "lw": 2, "shrinkA": 42,
                        "shrinkB": 42, "connectionstyle": f"arc3,rad={0.18 if both else 0}"},
        )  # fmt: skip
        way = at[b] - at[a]
        aside = np.array([way[1], -way[0]]) * (0.13 if both else 0.0)
        axes.text(*(at[a] + at[b]) / 2 + aside, label, ha="center", va="center", fontsize=9,
                  bbox={"fc": "white", "ec": "none", "pad": 1.5})  # fmt: skip
    for text, (x, y, kind) in boxes.items():
        colour = "black" if kind == "data" else "white"
        box = {"boxstyle": "round,pad=0.6", "fc": COLOURS[kind], "ec": "none"}
        axes.text(x, y, text, ha="center", va="center", color=colour, zorder=3, bbox=box)
    places = np.array(list(at.values()))
    (left, low), (right, high) = places.min(0) - 0.6, places.max(0) + 0.6
    axes.set(xlim=(left, right), ylim=(low, high), title=title)
    axes.axis("off")
    plt.show()


def free_addresses(count: int) -> list[str]:
    """`localhost:port` of free ports on this machine, for a notebook's own servers."""
    from common import network

    return [f"localhost:{port}" for port in network.free_ports(count, private=False)]


def cores() -> int:
    """The processor cores that this process may use."""
    return cluster.cores()
