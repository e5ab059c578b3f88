"""The last line of a task that trains: what it did, and where its time went."""

import sys
from collections.abc import Iterable

import common
from common.launch import record
from common.training import results


def line(worker: int, measured: dict) -> str:
    """`measured` is what `record.measured` returns."""
    seconds = measured["seconds"] or 1.0
    kinds = ("computing", "communicating", "waiting")
    shares = ", ".join(f"{kind} {measured[kind] / seconds:.0%}" for kind in kinds)
    rate = f"{measured['examples'] / seconds:,.0f} examples/s"
    return f"[worker {worker}] {measured['local_steps']} steps, {rate}: {shares}"


def say(opened: Iterable[tuple]) -> None:
    """Prints a line for each of `results.opened`; nothing if the process failed."""
    if common.failed or hasattr(sys, "last_value"):
        return
    for flags, worker, at in opened:
        mine = record.Tail(results.events_file(flags.results, worker), at).read()
        if mine:
            print(line(worker, record.measured(mine, [], flags, worker, flags.workers)), flush=True)
