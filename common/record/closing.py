"""The last line of a task that trains: what it did, and where its time went."""

import atexit
import sys
from typing import TextIO

from common.record import faults, results, trace
from common.record.summary import measured

_opened: list[tuple] = []  # flags, worker and first byte of each events file that it appends to


def line(worker: int, did: dict) -> str:
    """`did` is what `summary.measured` returns."""
    seconds = did["seconds"] or 1.0
    kinds = ("computing", "communicating", "waiting")
    shares = ", ".join(f"{kind} {did[kind] / seconds:.0%}" for kind in kinds)
    rate = f"{did['examples'] / seconds:,.0f} examples/s"
    return f"[worker {worker}] {did['local_steps']} steps, {rate}: {shares}"


def open_events(flags, worker: int) -> TextIO:
    """Opens a worker's events to append lines; when this process ends, prints their last line."""
    file = results.append(trace.events_file(flags.results, worker))
    if not _opened:
        atexit.register(_say)
    _opened.append((flags, worker, file.tell()))
    return file


def _say() -> None:
    if faults.failed or hasattr(sys, "last_value"):
        return
    for flags, worker, at in _opened:
        mine = results.Tail(trace.events_file(flags.results, worker), at).read()
        if mine:
            print(line(worker, measured(mine, [])), flush=True)
