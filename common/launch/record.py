"""Reads what the tasks of a run wrote, and builds `summary.json` from it."""

import importlib.metadata
import itertools
import json
import math
import platform
import statistics
from argparse import Namespace
from collections import Counter, defaultdict
from pathlib import Path

from common import datasets
from common.training.results import events_file


def shown(path: Path | str) -> str:
    """A path as the user would type it: relative if it is below the current directory."""
    path = Path(path)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


class Lines:
    """Reads the complete lines added to a file since the last call, starting at byte `at`."""

    def __init__(self, path: Path, at: int = 0):
        self._path, self._at = path, at

    def read(self) -> list[str]:
        try:
            with open(self._path, "rb") as file:
                file.seek(self._at)
                block = file.read()
        except FileNotFoundError:
            return []
        block = block[: block.rfind(b"\n") + 1]
        self._at += len(block)
        return block.decode(errors="replace").splitlines()


class Tail(Lines):
    """The same for a .jsonl file, parsed."""

    def read(self) -> list[dict]:
        return [json.loads(text) for text in super().read()]


def read_events(folder: str | Path, workers: int) -> list[list[dict]]:
    """The events of each worker, in the order in which it wrote them."""
    return [Tail(events_file(folder, k)).read() for k in range(workers)]


def read_evaluations(folder: str | Path) -> list[dict]:
    return Tail(Path(folder) / "evaluations.jsonl").read()


def read_updates(folder: str | Path, events: list[list[dict]]) -> list[dict]:
    """The `time`, `number` and `workers` of each update, by the clock of the ps."""
    lines = Tail(Path(folder) / "updates.jsonl").read()
    if lines:
        return [{"time": line["time"], "number": line["global_step"], "workers": line["workers"]}
                for line in lines]  # fmt: skip
    found = {}
    for k, mine in enumerate(events):
        for event in mine:
            if event.get("counted"):  # replicas that share an update have the same two
                found.setdefault((event["counted"], event["global_step"]), []).append(k)
    return [{"time": time, "number": number, "workers": workers}
            for (time, number), workers in found.items()]  # fmt: skip


def began(event: dict) -> float:
    """When a step began, in seconds since 1970."""
    return event["time"] - event["pull"] - event["compute"] - event["push"]


def summarise(folder: Path, scheme: str, flags: dict, tasks: list[dict]) -> dict:
    """Builds `summary.json` from what the tasks wrote into the folder.

    Args:
        folder: the results folder.
        scheme: the example's name.
        flags: the command line.
        tasks: job, index, exit_code and restarts of each; this function adds the rest.

    Returns:
        The content of `summary.json`.
    """
    # A worker that trains has an events file; one that only serves has none.
    workers = [task for task in tasks if task["job"] == "worker"]
    workers = [task for task in workers if events_file(folder, task["index"]).exists()]
    events = [Tail(events_file(folder, task["index"])).read() for task in workers]
    evaluations = read_evaluations(folder)
    updates = Tail(folder / "updates.jsonl").read()
    held = defaultdict(set)  # update -> the workers whose pushes it contains
    for update in updates:
        held[update["global_step"]].update(update["workers"])
    launches = [launch["time"] for launch in Tail(folder / "launches.jsonl").read()]
    for task in tasks:
        task |= {"local_steps": 0, "examples": 0, "seconds": 0.0}
    for task, mine in zip(workers, events, strict=True):
        task |= measured(mine, launches, Namespace(**flags), task["index"], len(workers))
        if updates:
            task["contributed"] = sum(task["index"] in update["workers"] for update in updates)
            # A killed task may lose an update's line: then nobody knows which pushes it contains.
            rounds = [event["global_step"] for event in mine if event["global_step"] in held]
            task["dropped"] = sum(task["index"] not in held[number] for number in rounds)
    every = [event for mine in events for event in mine]
    stretches = _stretches(every + updates, launches)
    seconds, sent = sum(last - first for first, last in stretches), _sent(folder, stretches)
    examples = sum(task["examples"] for task in workers)
    final, mbit = evaluations[-1], flags.get("link_mbit")
    return {
        "scheme": scheme,
        "flags": flags,
        "workers": flags["workers"],
        "ps": flags["ps"],
        "global_step": final["global_step"],
        "examples": examples,
        "seconds": seconds,
        "examples_per_second": examples / seconds if seconds else 0.0,
        "bytes_per_step": sent / len(every) if every and sent is not None else None,
        "link_use": sent * 8e-6 / seconds / mbit if mbit and seconds and sent is not None else None,
        **{name: value for name, value in final.items() if name not in ("time", "global_step")},
        "staleness": staleness(events) | ({"theory": 0.0} if updates else {}),
        "tasks": tasks,
        "versions": versions(),
    }


def measured(
    events: list[dict], launches: list[float], flags: Namespace, worker: int, workers: int
) -> dict:
    """What one of the `workers` did: its `local_steps` and `examples`, and the `seconds` that these
    took, split into `computing`, `communicating` and `waiting`."""
    window = getattr(flags, "window", 1)
    examples = window * (flags.batch_size or datasets.shard(flags, worker, workers))
    seconds = sum(last - first for first, last in _stretches(events, launches))
    computing = sum(event["compute"] for event in events)
    communicating = sum(event["pull"] + event["push"] for event in events)
    return {
        "local_steps": len(events) * window,
        "examples": sum(event.get("examples", examples) for event in events),
        "seconds": seconds,
        "computing": computing,
        "communicating": communicating,
        "waiting": max(0.0, seconds - computing - communicating),
    }


def _stretches(lines: list[dict], launches: list[float]) -> list[tuple[float, float]]:
    """Start of the first step and time of the last line, per launch: pauses do not count."""
    found = []
    for launch, following in itertools.pairwise([-math.inf, *launches, math.inf]):
        during = [line for line in lines if launch <= line["time"] < following]
        if steps := [began(line) for line in during if "pull" in line]:
            found.append((min(steps), max(line["time"] for line in during)))
    return found


def _sent(folder: Path, stretches: list[tuple[float, float]]) -> float | None:
    """Bytes that the private network carried in these periods; None without one."""
    import numpy as np  # late: the launcher starts its tasks first

    notes = Tail(folder / "network.jsonl").read()
    if not notes:
        return None
    times, counts = [[note[key] for note in notes] for key in ("time", "bytes")]
    return float(np.diff(np.interp(stretches, times, counts)).sum())


def steady(events: list[list[dict]]) -> list[list[dict]]:
    """The events without the start of the run: without its first second, or its first fifth if it
    is short; all, if they all belong to the start."""
    start = min((began(mine[0]) for mine in events if mine), default=0)
    end = max((mine[-1]["time"] for mine in events if mine), default=0)
    start += min(1.0, (end - start) / 5)
    found = [[e for e in mine if began(e) >= start] for mine in events]
    return found if any(found) else events


def staleness(events: list[list[dict]]) -> dict:
    """Mean, maximum and histogram of the staleness, and the mean that theory expects."""
    counts = Counter(event["staleness"] for mine in events for event in mine)
    return {
        "mean": sum(s * n for s, n in counts.items()) / max(1, counts.total()),
        "max": max(counts, default=0),
        "theory": _theory(events),
        "histogram": {str(s): counts[s] for s in sorted(counts)},
    }


def _theory(events: list[list[dict]]) -> float:
    """The mean staleness if the others' updates were spread evenly over each cycle, from pull to
    pull: their number in the cycle, times the share of the cycle between pull and push. With equal
    workers that number is n - 1. A pause adds what others do in it."""
    expected = []
    for mine in events:
        for event, following in itertools.pairwise(mine):
            if following["gap"] is not None and event["out"] is not None:
                others = following["pulled_at"] - event["pulled_at"] - 1
                cycle = event["out"] + following["gap"]
                expected.append(others * event["out"] / cycle if cycle else 0.0)
    return statistics.mean(expected) if expected else 0.0


def versions() -> dict[str, str]:
    """The versions of Python, TensorFlow and NumPy."""
    found = {"python": platform.python_version()}
    for name in ("tensorflow", "numpy"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:  # a build under another name
            found[name] = "unknown"
    return found
