"""For Recovery.ipynb: starts a run, kills its tasks, and reads what they wrote."""

import asyncio
import contextlib
import itertools
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import ipywidgets
import numpy as np
import psutil
from IPython.display import display

from common.launch import processes
from common.pictures import palette
from common.record import results, trace
from common.teach.scratch import ROOT, SCRATCH


class Disturbed:
    """`bash EXAMPLE/run.sh flags`, running. `deaths`: (seconds since 1970, name of the task)."""

    def __init__(self, example: str, *flags, folder: Path | None = None):
        """Continues the run in the results folder `folder`, if given."""
        self.folder = folder or Path(tempfile.mkdtemp(prefix="run-", dir=SCRATCH), "results")
        self.deaths: list[tuple[float, str]] = []
        command = ["bash", f"{ROOT}/{example}/run.sh", "--plain", "--results", self.folder, *flags]
        self._group = processes.Group()
        log = Path(tempfile.mkdtemp(prefix="screen-", dir=SCRATCH), "screen.txt")
        self._run = processes.Process(example, 0, [*map(str, command)], log)
        self._group.start(self._run, os.environ | {"PYTHON": sys.executable, "NO_CURVES": "1"})

    def screen(self) -> str:
        """What the run has printed so far."""
        return self._run.log.read_text(errors="replace")

    def events(self, worker: int) -> list[dict]:
        return results.Tail(self.folder / f"events-worker-{worker}.jsonl").read()

    def stretches(self, worker: int) -> list[tuple[float, float]]:
        """When a worker trained, (start, length): a pause of 0.5 s ends a stretch."""
        times = np.array([event["time"] for event in self.events(worker)])
        cuts = [0, *np.flatnonzero(np.diff(times) > 0.5) + 1, len(times)]
        return [(times[a], times[b - 1] - times[a]) for a, b in itertools.pairwise(cuts) if b > a]

    def runs(self) -> bool:
        return self._run.popen.poll() is None

    def tasks(self) -> dict[str, psutil.Process]:
        """The processes of the run's tasks, by name, from the process table."""
        found = {}
        for process in psutil.Process(self._run.popen.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error, ValueError):
                words = process.cmdline()
                job, index = (words[words.index(f"--{f}") + 1] for f in ("job_name", "task_index"))
                found[f"{job} {index}"] = process
        return found

    def kill(self, name: str) -> list[psutil.Process]:
        """Kills a task, or the launcher, with SIGKILL. Returns all processes that ran before."""
        tasks = self.tasks()
        victim = tasks["ps 0"].parent() if name == "launcher" else tasks[name]
        everyone = [*tasks.values(), victim]
        self.deaths.append((time.time(), name))
        victim.kill()
        return everyone

    def wait_for(self, worker: int, steps: int = 20, seconds: float = 120) -> float:
        """Waits until a worker has made `steps` steps since the last death. Returns the seconds
        from that death to the first of them."""
        since, end = (self.deaths or [(0.0, "")])[-1][0] + 0.1, time.monotonic() + seconds
        while time.monotonic() < end and self._run.popen.poll() is None:
            with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
                later = [e["time"] for e in self.events(worker) if trace.began(e) > since]
                if len(later) >= steps:
                    return later[0] - since
            time.sleep(0.1)
        raise TimeoutError(f"worker {worker} made no {steps} steps:\n{self.screen()}")

    def saved(self) -> int:
        """The update of the newest checkpoint, or 0."""
        found = (self.folder / "checkpoints").glob("model.ckpt-*.index")
        return max((int(path.stem.rpartition("-")[2]) for path in found), default=0)

    def reached(self) -> int:
        """The last update that its files know of."""
        made = trace.read_updates(self.folder, [self.events(k) for k in (0, 1)])
        return max(self.saved(), *(update["number"] for update in made))

    def wait_for_loss(self, updates: int = 20, seconds: float = 120) -> None:
        """Waits for a new checkpoint, and then until `updates` more have been made: these are lost
        if the ps dies now."""
        old, end = self.saved(), time.monotonic() + seconds
        while time.monotonic() < end:
            newest = self.saved()
            if newest > old and self.events(0)[-1]["global_step"] >= newest + updates:
                return
            time.sleep(0.05)
        raise TimeoutError(f"nothing was saved after update {old}:\n{self.screen()}")

    @staticmethod
    def alive(everyone: list[psutil.Process], seconds: float = 5) -> list[psutil.Process]:
        """Those of the processes that are still alive after at most `seconds`."""
        end, left = time.monotonic() + seconds, everyone
        while left and time.monotonic() < end:
            time.sleep(0.05)
            dead = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
            left = [p for p in left if p.is_running() and p.status() not in dead]
        return left

    def end(self, wait: bool = False) -> str:
        """Stops the run as Ctrl-C does, or waits until it ends. Returns what it printed."""
        if not wait:
            with contextlib.suppress(KeyError, psutil.Error):
                self.tasks()["ps 0"].parent().send_signal(signal.SIGINT)
        try:
            self._run.popen.wait(120)
        finally:
            self._group.kill()
        return self.screen()


SHOWN, WIDTH, LANE = 40.0, 640, 30  # seconds; pixels
VICTIMS = "worker 0", "worker 1", "ps 0", "launcher"


def buttons(run: Disturbed) -> None:
    """Shows a button for each task, which kills it, above what the workers do. They go on as long
    as the run does."""
    picture = ipywidgets.HTML(lanes(run, time.time()))

    def kill(button) -> None:
        with contextlib.suppress(KeyError, psutil.Error):  # it is dead already
            run.kill(button.description.removeprefix("kill "))

    async def answer() -> None:
        while run.runs():
            await asyncio.sleep(0.3)  # only to look again
            picture.value = lanes(run, time.time())

    each = [ipywidgets.Button(description=f"kill {name}") for name in VICTIMS]
    for button in each:
        button.on_click(kill)
    live = ipywidgets.VBox([ipywidgets.HBox(each), picture])._repr_mimebundle_()
    said = "In JupyterLab: a button for each task, and below them what the workers do."
    display(live | {"text/plain": said}, raw=True)
    run.answering = asyncio.ensure_future(answer())  # kept, or it may be collected


def lanes(run: Disturbed, now: float) -> str:
    """An SVG of the last seconds: when each worker trained, and where a task died."""
    start, parts, newest = now - SHOWN, [], 0

    def place(at: float) -> float:
        return 90 + (WIDTH - 90) * max(0.0, at - start) / SHOWN

    for k in (0, 1):
        with contextlib.suppress(FileNotFoundError):
            newest = max([newest, *(event["global_step"] for event in run.events(k)[-1:])])
            for began, length in run.stretches(k):
                left, right = place(began), place(began + max(length, 0.1))
                size = f'y="{k * LANE + 24}" width="{right - left:.1f}" height="{LANE - 8}"'
                parts.append(f'<rect x="{left:.1f}" {size} fill="{palette.worker(k)}"/>')
        parts.append(f'<text x="0" y="{k * LANE + 40}">worker {k}</text>')
    for at, name in run.deaths:
        if at > start:
            x = place(at)
            parts.append(f'<path d="M{x:.1f} 18 V{2 * LANE + 24}" stroke="{palette.INK}"/>')
            parts.append(f'<text x="{x:.1f}" y="13" text-anchor="middle">{name} dies</text>')
    said = f"update {newest}" if run.runs() else f"The run is over, at update {newest}"
    return (
        f'<svg width="{WIDTH}" height="{2 * LANE + 50}" role="img" aria-label="{said}" '
        f'style="font: 13px sans-serif">{"".join(parts)}'
        f'<text x="90" y="{2 * LANE + 44}">{said}</text></svg>'
    )
