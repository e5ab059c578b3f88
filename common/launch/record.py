"""Reads what the tasks of a run left, and makes `summary.json` from it."""

import importlib.metadata
import itertools
import json
import platform
import statistics
from collections import Counter
from pathlib import Path

from common.training.results import events_file


def shown(path: Path | str) -> str:
    """A path as the user would type it: relative if it is below the current directory."""
    path = Path(path)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def clear(folder: Path) -> None:
    """Removes what an earlier run left in the same folder, except its checkpoints."""
    for pattern in ("events-*.jsonl", "evaluations.jsonl", "updates.jsonl", "summary.json",
                    "parameters.npz", "curves.png", "logs/*.log",
                    "tensorboard/*/events.out.tfevents.*"):  # fmt: skip
        for path in folder.glob(pattern):
            path.unlink()


class Tail:
    """Reads the complete lines that were added to a .jsonl file since the last call."""

    def __init__(self, path: Path):
        self._path, self._at = path, 0

    def read(self) -> list[dict]:
        try:
            with open(self._path, "rb") as file:
                file.seek(self._at)
                block = file.read()
        except FileNotFoundError:
            return []
        block = block[: block.rfind(b"\n") + 1]
        self._at += len(block)
        return [json.loads(text) for text in block.splitlines()]


def read_events(folder: str | Path, workers: int) -> list[list[dict]]:
    """The events of every worker, in the order they were written."""
    return [Tail(events_file(folder, k)).read() for k in range(workers)]


def read_evaluations(folder: str | Path) -> list[dict]:
    return Tail(Path(folder) / "evaluations.jsonl").read()


def began(event: dict) -> float:
    """When a step began, in seconds since 1970."""
    return event["time"] - event["pull"] - event["compute"] - event["push"]


def summarise(folder: Path, scheme: str, flags: dict, tasks: list[dict], size: int) -> dict:
    """Builds `summary.json` from what the tasks left in the folder.

    Args:
        folder: the results.
        scheme: the example's name.
        flags: the command line.
        tasks: job, index, exit_code and restarts of each; the rest is added here.
        size: examples in the training set.

    Returns:
        The content of `summary.json`.
    """
    workers = [task for task in tasks if task["job"] == "worker"]
    events = read_events(folder, len(workers))
    evaluations = read_evaluations(folder)
    updates = Tail(folder / "updates.jsonl").read()
    window = flags.get("window", 1)
    for task in tasks:
        task |= {"local_steps": 0, "examples": 0, "seconds": 0.0}
    for task, mine in zip(workers, events, strict=True):
        shard = len(range(task["index"], size, len(workers)))
        steps = len(mine) * window
        task["local_steps"] = steps
        task["examples"] = steps * (flags["batch_size"] or shard)
        task["seconds"] = mine[-1]["time"] - began(mine[0]) if mine else 0.0
        task["computing"] = sum(event["compute"] for event in mine)
        task["communicating"] = sum(event["pull"] + event["push"] for event in mine)
        if updates:
            task["contributed"] = sum(task["index"] in update["workers"] for update in updates)
            # A killed task's last events are lost, not its gradients.
            task["dropped"] = max(0, len(mine) - task["contributed"])
        task["waiting"] = max(0.0, task["seconds"] - task["computing"] - task["communicating"])
    every = [event for mine in events for event in mine]
    seconds = max((e["time"] for e in every + updates), default=0) - min(
        map(began, every), default=0
    )
    examples = sum(task["examples"] for task in workers)
    staleness = Counter(event["staleness"] for event in every)
    final = evaluations[-1]
    return {
        "scheme": scheme,
        "flags": flags,
        "workers": len(workers),
        "ps": len(tasks) - len(workers),
        "global_step": final["global_step"],
        "examples": examples,
        "seconds": seconds,
        "examples_per_second": examples / seconds if seconds else 0.0,
        **{name: value for name, value in final.items() if name.startswith("test_")},
        "staleness": {
            "mean": sum(s * n for s, n in staleness.items()) / max(1, len(every)),
            "max": max(staleness, default=0),
            "theory": 0.0 if updates or flags.get("mode") == "towers" else _theory(events),
            "histogram": {str(s): staleness[s] for s in sorted(staleness)},
        },
        "tasks": tasks,
        "versions": versions(),
    }


def _theory(events: list[list[dict]]) -> float:
    """The mean staleness if the others' updates were spread evenly over each cycle, from pull to
    pull: their number in the cycle, times the share of the cycle between pull and push. With equal
    workers that number is n - 1. A pause counts by the updates that others make in it."""
    expected = []
    for mine in events:
        for event, following in itertools.pairwise(mine):
            if following["gap"] is not None and event["out"] is not None:
                others = following["pulled_at"] - event["pulled_at"] - 1
                cycle = event["out"] + following["gap"]
                expected.append(others * event["out"] / cycle if cycle else 0.0)
    return statistics.mean(expected) if expected else 0.0


def versions() -> dict[str, str]:
    """Of the software behind the numbers: Python, TensorFlow, NumPy."""
    found = {"python": platform.python_version()}
    for name in ("tensorflow", "numpy"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:  # a build under another name
            found[name] = "unknown"
    return found
