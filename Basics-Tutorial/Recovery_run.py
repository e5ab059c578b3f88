"""For Recovery.ipynb: starts a run, kills its tasks, and reads what they wrote."""

import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import psutil

from common.launch import processes
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
