"""Sums up what the tasks of a run wrote: `summary.json`."""

import importlib.metadata
import itertools
import math
import platform
from collections import defaultdict
from pathlib import Path

from common.record import results, trace

NOT_TESTED = ("time", "global_step", "examples")  # what an evaluation says, too


def summarise(folder: Path, scheme: str, flags: dict, tasks: list[dict]) -> dict:
    """Builds `summary.json` from what the tasks wrote into the folder.

    Args:
        folder: the results folder.
        scheme: the example's name.
        flags: the command line.
        tasks: job, index, exit_code, restarts and, if there are any, restart_reasons of each; this
            function adds the rest.

    Returns:
        The content of `summary.json`.
    """
    # A worker that trains has an events file; one that only serves has none.
    workers = [task for task in tasks if task["job"] == "worker"]
    workers = [task for task in workers if trace.events_file(folder, task["index"]).exists()]
    events = [results.Tail(trace.events_file(folder, task["index"])).read() for task in workers]
    evaluations = trace.read_evaluations(folder)
    updates = results.Tail(folder / "updates.jsonl").read()
    held = defaultdict(set)  # update -> the workers whose pushes it contains
    for update in updates:
        held[update["global_step"]].update(update["workers"])
    launches = [launch["time"] for launch in results.Tail(folder / "launches.jsonl").read()]
    for task in tasks:
        task.setdefault("restart_reasons", [])
        task |= {"local_steps": 0, "examples": 0, "seconds": 0.0}
    for task, mine in zip(workers, events, strict=True):
        task |= measured(mine, launches)
        if updates:
            task["contributed"] = sum(task["index"] in update["workers"] for update in updates)
            # A killed task may lose an update's line: then nobody knows which pushes it contains.
            rounds = [event["global_step"] for event in mine if event["global_step"] in held]
            task["dropped"] = sum(task["index"] not in held[number] for number in rounds)
    every = [event for mine in events for event in mine]
    # All workers start together. Each duration is by one worker's clock; the longest counts.
    own = [map(_length, _stretches(mine, launches)) for mine in events]
    seconds = sum(map(max, zip(*own)))
    sent = _sent(folder, _stretches(every + updates, launches))
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
        **{name: value for name, value in final.items() if name not in NOT_TESTED},
        "staleness": trace.staleness(events) | ({"theory": 0.0} if updates else {}),
        "tasks": tasks,
        "versions": versions(),
    }


def measured(events: list[dict], launches: list[float]) -> dict:
    """What a worker did: its `local_steps`, that is mini-batches, and `examples`, and the `seconds`
    that these took, split into `computing`, `communicating` and `waiting`."""
    seconds = sum(map(_length, _stretches(events, launches)))
    computing = sum(event["compute"] for event in events)
    communicating = sum(event["pull"] + event["push"] for event in events)
    return {
        "local_steps": trace.batches(events),
        "examples": sum(event["examples"] for event in events),
        "seconds": seconds,
        "computing": computing,
        "communicating": communicating,
        "waiting": max(0.0, seconds - computing - communicating),
    }


def _stretches(lines: list[dict], launches: list[float]) -> list[tuple[float, float]]:
    """Start of the first step and time of the last line, per launch: pauses do not count. A launch
    without steps has (0, 0)."""
    found = []
    for launch, following in itertools.pairwise([-math.inf, *launches, math.inf]):
        during = [line for line in lines if launch <= line["time"] < following]
        steps = [trace.began(line) for line in during if "pull" in line]
        found.append((min(steps), max(line["time"] for line in during)) if steps else (0.0, 0.0))
    return found


def _length(stretch: tuple[float, float]) -> float:
    return stretch[1] - stretch[0]


def _sent(folder: Path, stretches: list[tuple[float, float]]) -> float | None:
    """Bytes that the private network carried in these periods; None without one.

    The counter was read several times a second. Just before and after a period, checkpoints may
    fill the network: so the speed within it counts, from its first to its last reading. But it has
    carried no more than was counted from the reading before it to the one after it.
    """
    import numpy as np  # late: the launcher starts its tasks first

    notes = results.Tail(folder / "network.jsonl").read()
    if not notes:
        return None
    times, counts = (np.array([note[key] for note in notes]) for key in ("time", "bytes"))
    total = 0.0
    for start, end in filter(any, stretches):
        inside = np.flatnonzero((start <= times) & (times <= end))
        at = times[inside[[0, -1]]] if len(inside) > 2 else np.array([start, end])
        whole, known = end - start, at[1] - at[0]
        sent = np.diff(np.interp(at, times, counts))[0] * (whole / known if known else 0)
        around = np.searchsorted(times, start, "right") - 1, np.searchsorted(times, end)
        first, last = np.clip(around, 0, len(times) - 1)
        total += min(sent, counts[last] - counts[first])
    return float(total)


def versions() -> dict[str, str]:
    """The versions of Python, TensorFlow and NumPy."""
    found = {"python": platform.python_version()}
    for name in ("tensorflow", "numpy"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:  # a build under another name
            found[name] = "unknown"
    return found
