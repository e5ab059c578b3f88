"""The trace of a run: what each worker's events file holds, line by line."""

import itertools
import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from common.record import results


def events_file(folder: str | Path, worker: int) -> Path:
    return Path(folder) / f"events-worker-{worker}.jsonl"


def line(worker: int, step: int, loss: float, staleness: int) -> str:
    """The line that the screen shows for a step."""
    return f"[worker {worker}] step {step}  loss {loss:.4g}  staleness {staleness}"


def read_events(folder: str | Path, workers: int) -> list[list[dict]]:
    """The events of each worker, in the order in which it wrote them."""
    return [results.Tail(events_file(folder, k)).read() for k in range(workers)]


def read_evaluations(folder: str | Path) -> list[dict]:
    return results.Tail(Path(folder) / "evaluations.jsonl").read()


def read_updates(folder: str | Path, events: list[list[dict]]) -> list[dict]:
    """The `time`, `number` and `workers` of each update, by the clock of the ps."""
    lines = results.Tail(Path(folder) / "updates.jsonl").read()
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


def steady(events: list[list[dict]]) -> list[list[dict]]:
    """The events without the start of the run: without its first second, or its first fifth if it
    is short; and without what was done before the last worker began. All, if they all belong to
    the start."""
    begins = [began(mine[0]) for mine in events if mine]
    first = min(begins, default=0)
    end = max((mine[-1]["time"] for mine in events if mine), default=0)
    start = first + min(1.0, (end - first) / 5)
    for since in (max([start, *begins]), start):
        found = [[e for e in mine if began(e) >= since] for mine in events]
        if list(map(bool, found)) == list(map(bool, events)):
            return found
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


def batches(events: Sequence[dict]) -> int:
    """How many mini-batches a worker's events tell of. A restarted worker counts from 0 again."""
    counts = [event["local_step"] for event in events]
    pairs = itertools.pairwise([0, *counts])
    return sum(count - before if count > before else count for before, count in pairs)
