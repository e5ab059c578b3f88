"""A run that is disturbed on purpose, and what becomes of it; used by `faults.py`."""

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from watch import ROOT, eventually, held, listening, processes

from common.record import results

CABLE = Path(__file__).with_name("cable.py")
SIGNALS = {"kill": signal.SIGKILL, "two": signal.SIGKILL, "term": signal.SIGTERM}
PAUSES = {"stop": 20.0, "cut": 5.0}  # seconds that these faults last
LAST = 0.2  # seconds before the last update: the moment "end"
running: set["Run"] = set()


class Run:
    """One run of an example, in a folder of its own, watched from outside."""

    def __init__(self, example: str, steps: int, where: Path, limit: float):
        """`example` is a folder, optionally with flags; `limit` is the run's --timeout."""
        self.where, self.results, self._limit = where, where / "results", limit
        folder, *flags = shlex.split(example)
        self._folder, self._before = ROOT / folder, self._files(ROOT / folder)
        self._sockets = listening()
        self._mark = f"DISTURBED_RUN={where}"  # in the environment of all its processes
        for name in ("tmp", "cwd"):
            (where / name).mkdir()
        command = ["bash", f"{ROOT}/{folder}/run.sh", "--plain", *flags, "--steps", str(steps)]
        command += ["--timeout", f"{limit:.0f}", "--results", str(self.results)]
        env = {"DISTURBED_RUN": str(where), "PYTHON": sys.executable, "TMPDIR": f"{where}/tmp"}
        self._tails: dict[Path, results.Tail] = {}
        self._lines, self._points = 0, []
        self.at = None  # how many lines the events had when it was disturbed
        self.began = time.monotonic()
        with open(where / "screen", "wb") as screen:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=screen, stderr=subprocess.STDOUT,
                cwd=where / "cwd", env=os.environ | env,
                start_new_session=True,  # Ctrl-C is for us
            )  # fmt: skip
        running.add(self)

    @staticmethod
    def _files(folder: Path) -> set[Path]:
        """All files except results and those that Python compiled."""
        return {p for p in folder.rglob("*") if not {"__pycache__", "results"} & set(p.parts)}

    def goes_on(self) -> bool:
        return self.process.poll() is None

    def pids(self) -> dict[str, int]:
        """Name -> process ID of the launcher and of each live task."""
        found = {"launcher": self.process.pid} if self.goes_on() else {}
        for pid, command in processes(self._mark).items():
            if said := re.search(r"--job_name (\w+) --task_index (\d+)\b", command):
                found[f"{said[1]} {said[2]}"] = pid
        return found

    def has_checkpoint(self) -> bool:
        return any((self.results / "checkpoints").glob("*.index"))

    # When to strike. What waits returns whether the run is still going.

    def wait_until(self, holds: Callable[[], bool], every: float = 0.01) -> bool:
        while self.goes_on() and not holds():
            time.sleep(every)
        return self.goes_on()

    def all_started(self, names: set[str]) -> bool:
        return self.wait_until(lambda: names <= self.pids().keys(), every=0.1)

    def lines(self) -> int:
        """How many steps are in the events so far."""
        for path in self.results.glob("events-worker-*.jsonl"):
            tail, events = self._tails.setdefault(path, results.Tail(path)), []
            with contextlib.suppress(ValueError):  # a broken line: numbers() counts it
                events = tail.read()
            if events:
                self._lines += len(events)
                self._points.append((max(event["time"] for event in events), self._lines))
        return self._lines

    def seconds_left(self, of: int) -> float:
        """Until it has made `of` steps, at the pace of the last second."""
        done = self.lines()
        near = [point for point in self._points if point[0] > self._points[-1][0] - 1]
        if len(near) < 2 or done < 0.1 * of or near[-1][0] <= near[0][0]:
            return float("inf")
        (first, before), (last, after) = near[0], near[-1]
        return last + (of - after) * (last - first) / (after - before) - time.time()

    def wait_for(self, moment: str, share: float, like: dict) -> bool:
        """Waits for a moment of the run; `share` (0 to 1) sets the exact time, and `like` is the
        undisturbed run."""
        if moment == "start":  # between the start of all tasks and the first checkpoint
            due = time.monotonic() + share * (like["first"] - like["started"])
            return self.wait_until(lambda: time.monotonic() > due or self.has_checkpoint())
        if moment == "middle":
            step = (0.3 + 0.4 * share) * like["lines"]
            return self.wait_until(lambda: self.lines() >= step)
        return self.wait_until(lambda: self.seconds_left(like["lines"]) < share * LAST)

    def strike(self, fault: str, names: set[str]) -> bool:
        """Disturbs these tasks; returns whether they were still alive."""
        self.at, pids = self._lines, self.pids()
        if not names <= pids.keys():
            return False
        if fault == "cut":
            command = [sys.executable, CABLE, pids[min(names)], PAUSES[fault]]
            command = [str(word) for word in command]
            return subprocess.run(command, stdout=subprocess.DEVNULL).returncode == 0
        try:
            for name in names:
                os.kill(pids[name], SIGNALS.get(fault, signal.SIGSTOP))
            if fault == "stop":
                time.sleep(PAUSES[fault])
                os.kill(pids[min(names)], signal.SIGCONT)
        except ProcessLookupError:
            return False
        return True

    # What became of it.

    def end(self) -> int | None:
        """Its exit code; None if it had to be killed because not even --timeout ended it."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(self._limit + 30)
        code = self.process.poll()
        if code is None:
            self.kill()
        self.seconds = time.monotonic() - self.began
        return code

    def kill(self) -> None:
        """Kills the launcher; its tasks end with it."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        running.discard(self)

    def left(self) -> dict[str, list]:
        """Processes, ports and files that are still there."""
        running.discard(self)
        eventually(lambda: not processes(self._mark), 5)
        found = processes(self._mark)
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        ports = held({i: port for i, port in listening().items() if i not in self._sockets})
        files = [p for name in ("tmp", "cwd") for p in (self.where / name).rglob("*")]
        files += self._files(self._folder) - self._before
        return {
            "processes": [self.plain(command) for command in found.values()],
            "ports": sorted(ports),
            "files": sorted(self.plain(str(path)) for path in files),
        }

    def summary(self) -> dict:
        path = self.results / "summary.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def plain(self, text: str) -> str:
        """Without the paths of this machine."""
        return text.replace(f"{self.where}/", "").replace(f"{ROOT}/", "")

    def screen(self) -> str:
        return (self.where / "screen").read_text(errors="replace")

    def numbers(self) -> dict[str, Counter]:
        """How often each update's number occurs in the events and in `updates.jsonl`. A line that
        cannot be read has the number None. Half a line at the end of a file, which a killed task
        may leave, does not count: nobody reads it."""
        found = {"events": Counter(), "updates": Counter()}
        for name, counter in found.items():
            for path in self.results.glob(f"{name}*.jsonl"):
                for line in path.read_text(errors="replace").split("\n")[:-1]:
                    try:
                        counter[json.loads(line)["global_step"]] += 1
                    except ValueError:
                        counter[None] += 1
        return found


def missing_and_twice(found: Counter, asked: int, times: int) -> tuple[int, int]:
    """How many lines are missing, and how many are surplus, if each number from 1 to `asked`
    should occur `times` times."""
    missing = sum(max(0, times - found[number]) for number in range(1, asked + 1))
    return missing, found.total() - times * asked + missing
