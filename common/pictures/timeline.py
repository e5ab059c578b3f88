"""Draws who does what, when: a lane for the ps and one for each worker."""

import itertools
from collections import defaultdict
from collections.abc import Collection
from pathlib import Path

import numpy as np
from matplotlib.legend_handler import HandlerTuple
from matplotlib.patches import Patch

from common.pictures import palette
from common.record import results, trace

ARROWS = 16  # more would hide the lanes


def height(events: list[list[dict]], keeper: str = "ps", computing: Collection[int] = ()) -> float:
    """The inches that the picture needs, legend included."""
    return 1.05 + 0.42 * (len(lanes(events, computing)) + bool(keeper))


def lanes(events: list[list[dict]], computing: Collection[int]) -> list[int]:
    """The workers that have a lane."""
    return [k for k, mine in enumerate(events) if mine or k in computing]


def keeper(summary: dict) -> str:
    """The task that keeps the parameters: `ps`, or a `chief` without one, as in Actor-Learner."""
    jobs = {task["job"] for task in summary["tasks"]}
    return next((job for job in ("ps", "chief") if job in jobs), "")


def clocks(folder: Path) -> dict[int, list[tuple[float, float]]]:
    """When each worker computed, if the workers share each step (`clocks.jsonl`)."""
    found = defaultdict(list)
    for step in results.Tail(folder / "clocks.jsonl").read():
        for _, worker, _, begin, end in step:
            found[worker].append((begin, end))
    return found


def stretch(events: list[dict], cycles: int) -> tuple[float, float]:
    """Start and length, in seconds, of a typical stretch of a worker's `cycles` steps: in the
    middle third of the run, of median length there."""
    starts = np.array([trace.began(e) for e in events])
    if len(starts) <= cycles:
        return starts[0], events[-1]["time"] - starts[0]
    lengths = starts[cycles:] - starts[:-cycles]
    third = len(lengths) // 3
    middle = np.argsort(lengths[third : 2 * third + 1])
    k = third + middle[len(middle) // 2]
    return starts[k], lengths[k]


def shares(events: list[dict], computing: list[tuple[float, float]] = ()) -> dict[str, float]:
    """The share of a worker's time in each phase, from its first step to its last. `computing`: see
    `clocks`; a worker may have nothing else."""
    begin = trace.began(events[0]) if events else computing[0][0]
    whole = (events[-1]["time"] if events else computing[-1][1]) - begin
    parts = {name: sum(e[name] for e in events) for name in ("pull", "compute", "push")}
    if computing:
        parts["compute"] = sum(end - start for start, end in computing if start >= begin)
    parts["wait"] = max(0.0, whole - sum(parts.values()))
    return {name: part / (whole or 1) for name, part in parts.items()}


def draw(
    axes,
    events: list[list[dict]],
    updates: list[dict],
    cycles: int = 0,
    keeper: str = "ps",
    computing: dict[int, list[tuple[float, float]]] | None = None,
) -> str:
    """Draws a few steps in the middle of the run: each worker's pull, compute, push and wait, and
    each update on the ps in the colour of the worker (or workers) that pushed it.

    Args:
        axes: where.
        events: of each worker; one without events gets no lane.
        updates: `time` and `workers` of each; see `trace.read_updates`.
        cycles: steps of the first worker that fit in; default: so that the arrows stay few.
        keeper: the task that makes the updates; "": there is none, and no lane for it.
        computing: see `clocks`; without the waits for others that the events contain.

    Returns:
        The unit of the axis.
    """
    computing = computing or {}
    rows = lanes(events, computing)
    if not any(events):
        return ""
    names = [keeper] if keeper and updates else []  # no updates: nobody asked for its clock
    first = len(names)
    origin, length = stretch(next(filter(None, events)), cycles or max(2, round(8 / len(rows))))
    scale, unit = (1, "seconds") if length > 2 else (1e3, "milliseconds")
    within = [u for u in updates if 0 <= u["time"] - origin <= length]
    made = {u["number"]: u["time"] for u in updates}
    arrows = first and sum(len(u["workers"]) for u in within) <= ARROWS
    for row, worker in enumerate(rows, first):
        axes.barh(row, scale * length, left=0, height=0.5, color=palette.WAIT)
        for e in events[worker]:
            at = trace.began(e) - origin
            if not -length < at < length:
                continue
            axes.plot([scale * at] * 2, [row - 0.32, row + 0.32], color=palette.INK, lw=1)
            for name in ("pull", "compute", "push"):
                if name != "compute" or worker not in computing:
                    axes.barh(row, scale * e[name], left=scale * at, height=0.5,
                              color=palette.PHASES[name])  # fmt: skip
                at += e[name]
            if arrows and e["pull"]:
                # A synchronous worker reads once the update is made that it has waited for.
                known = e.get("out") is not None
                after = max(trace.began(e), made.get(e["pulled_at"], 0))
                read = e["counted"] - e["out"] if known else after
                got = trace.began(e) + e["pull"]
                start, end = (read - origin, 0.1), (got - origin, row - 0.25)
                if start[0] >= 0 and end[0] <= length:
                    _arrow(axes, scale, start, end, palette.PULL)
        for begin, end in computing.get(worker, ()):
            if -length < begin - origin < length:
                axes.barh(row, scale * (end - begin), left=scale * (begin - origin), height=0.5,
                          color=palette.COMPUTE)  # fmt: skip
    if first:
        axes.barh(0, scale * length, left=0, height=0.16, color=palette.PS, alpha=0.35)
    for update in within if first else ():
        at, share = update["time"] - origin, 0.56 / max(1, len(update["workers"]))
        for k, worker in enumerate(update["workers"]):
            low = -0.28 + k * share
            axes.plot([scale * at] * 2, [low, low + share], color=palette.worker(worker), lw=3.5,
                      solid_capstyle="butt", zorder=4)  # fmt: skip
            mine = next((e for e in events[worker] if e["global_step"] == update["number"]), None)
            sent = mine and trace.began(mine) + mine["pull"] + mine["compute"] - origin
            if arrows and mine and sent >= 0:
                # An elastic push does not wait for the local steps: it may arrive before they end.
                start = (min(sent, at), rows.index(worker) + first - 0.25)
                _arrow(axes, scale, start, (at, 0.28), palette.PUSH)
    _label(axes, rows, names, scale * length)
    where = "A few steps in the middle of the run"
    if len(rows) < len(events):
        where = f"A few steps and updates of {len(rows)} of the {len(events)} workers"
    axes.set_title(f"Who does what, when? {where}, in {unit}")
    never = {name for name in ("pull", "push") if not any(e[name] for k in rows for e in events[k])}
    _legend(axes, "".join(names), rows, arrows, never)
    return unit


def trials(axes, events: list[list[dict]]) -> None:
    """Draws which worker trained which network, and when, if workers train several."""
    begin = min(trace.began(e) for mine in events for e in mine[:1])
    rows = lanes(events, ())
    for row, worker in enumerate(rows):
        axes.barh(row, events[worker][-1]["time"] - begin, height=0.5, color=palette.WAIT)
        for trial, group in itertools.groupby(events[worker], lambda e: e["trial"]):
            mine = list(group)
            start, end = trace.began(mine[0]) - begin, mine[-1]["time"] - begin
            axes.barh(row, end - start, left=start, height=0.5, color=palette.worker(worker))
            axes.text((start + end) / 2, row, trial, ha="center", va="center", color="white")
    _label(axes, rows, [], max(mine[-1]["time"] for mine in events if mine) - begin)
    axes.set(title="Who trained which network, when? (grey: between two networks)",
             xlabel="seconds")  # fmt: skip


def _arrow(axes, scale: float, start: tuple, end: tuple, colour: str) -> None:
    axes.annotate("", (scale * end[0], end[1]), (scale * start[0], start[1]), zorder=3,
                  arrowprops={"arrowstyle": "-|>,head_width=0.15,head_length=0.3", "color": colour,
                              "lw": 1, "shrinkA": 0, "shrinkB": 0})  # fmt: skip


def _label(axes, rows: list[int], names: list[str], length: float) -> None:
    colours = [palette.PS] * len(names) + [palette.worker(k) for k in rows]
    names = names + [f"worker {k}" for k in rows]
    axes.set_yticks(range(len(names)), names)
    for text, colour in zip(axes.get_yticklabels(), colours):
        text.set(color=colour, fontweight="bold")
    axes.set(xlim=(0, length), ylim=(len(names) - 0.5, -0.55))
    axes.grid(False, axis="y")


def _legend(axes, keeper: str, workers: list[int], arrows: bool, never: set[str]) -> None:
    """`workers`: those that have a lane. Without a `keeper`, there are no updates. `never`: the
    phases that do not occur."""

    def mark(colour: str, marker: str = "|", **look):
        return axes.plot([], [], color=colour, marker=marker, ls="", **({"ms": 11} | look))[0]

    phases = palette.PHASES.items()
    entries = {name: Patch(color=colour) for name, colour in phases if name not in never}
    entries["a step begins"] = mark(palette.INK)
    if keeper:
        ticks = tuple(mark(palette.worker(k), mew=3.5) for k in workers[:2])
        entries["update (colour: worker)" if workers[1:] else "update"] = ticks
    if arrows:
        entries[f"from {keeper}"] = mark(palette.PULL, r"$\rightarrow$", ms=12)
        entries[f"to {keeper}"] = mark(palette.PUSH, r"$\rightarrow$", ms=12)
    count = len(axes.get_yticks())
    axes.legend(entries.values(), entries, handler_map={tuple: HandlerTuple(None)}, ncols=8,
                loc="upper left", bbox_to_anchor=(0, -0.4 / count), columnspacing=1.2,
                handlelength=1.2)  # fmt: skip


def describe(events: list[list[dict]], computing: dict | None = None, keeper: str = "ps") -> str:
    """What the picture shows, in words."""
    said, computing = [], computing or {}
    for k in lanes(events, computing):
        found = shares(events[k], computing.get(k, ()))
        parts = [f"{name} {share:.0%}" for name, share in found.items() if share > 0.004]
        said.append(f"worker {k}: {', '.join(parts)}")
    marks = f", and a mark on the lane of the {keeper} for each update" if keeper else ""
    return (
        f"Timeline of a few steps: a lane for each task{marks}. "
        f"Shares of all steps: {'; '.join(said)}"
    )
