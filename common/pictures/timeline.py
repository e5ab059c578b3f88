"""Draws who does what, when: a lane for the ps and one for each worker."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.legend_handler import HandlerTuple
from matplotlib.patches import Patch, Rectangle

from common.pictures import palette
from common.record import trace

ARROWS = 16  # more would hide the lanes


def height(events: list[list[dict]], keeper: str = "ps", computing: Collection[int] = ()) -> float:
    """The inches that the picture needs, legend included."""
    return 1.05 + 0.42 * (len(lanes(events, computing)) + bool(keeper))


def lanes(events: list[list[dict]], computing: Collection[int]) -> list[int]:
    """The workers that have a lane."""
    return [k for k, mine in enumerate(events) if mine or k in computing]


def keeper_of(summary: dict) -> str:
    """The task that keeps the parameters: `ps`, or, without one, the `chief`."""
    jobs = {task["job"] for task in summary["tasks"]}
    return next((job for job in ("ps", "chief") if job in jobs), "")


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
    """The share of a worker's time in each phase, from its first step to its last. `computing`: as
    for `draw`, of this worker, which may have nothing else."""
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
        computing: worker -> (begin, end) of each stretch in which it computed, in seconds since
            1970, where the events do not tell: theirs contains waits for others.

    Returns:
        The unit of the axis.
    """
    computing = computing or {}
    rows = lanes(events, computing)
    if not any(events):
        return ""
    start, length = stretch(next(filter(None, events)), cycles or max(2, round(8 / len(rows))))
    shown = Shown(start, length)
    keepers = [keeper] if keeper and updates else []  # no updates: nobody asked for its clock
    lane = {worker: row for row, worker in enumerate(rows, len(keepers))}
    within = [update for update in updates if shown.has(update["time"])]
    arrows = bool(keepers) and sum(len(update["workers"]) for update in within) <= ARROWS
    made = {update["number"]: update["time"] for update in updates}
    for worker in rows:
        axes.barh(lane[worker], shown.width(length), left=0, height=0.5, color=palette.WAIT)
        for event in events[worker]:
            if shown.touches(trace.began(event)):
                _step(axes, shown, lane[worker], event, worker in computing)
                if arrows and event["pull"]:
                    _pull(axes, shown, lane[worker], event, made)
        for begin, end in computing.get(worker, ()):
            if shown.touches(begin):
                _bar(axes, shown, lane[worker], begin, end - begin, palette.COMPUTE)
    if keepers:
        lane_of_keeper = {"height": 0.16, "color": palette.PS, "alpha": 0.35}
        axes.barh(0, shown.width(length), left=0, **lane_of_keeper)
        for update in within:
            _update(axes, shown, update)
            if arrows:
                _pushes(axes, shown, lane, update, events)
    name_lanes(axes, rows, keepers)
    axes.set_xlim(0, shown.width(length))
    where = "A few steps in the middle of the run"
    if len(rows) < len(events):
        where = f"A few steps and updates of {len(rows)} of the {len(events)} workers"
    axes.set_title(f"Who does what, when? {where}, in {shown.unit}")
    never = {name for name in ("pull", "push") if not any(e[name] for k in rows for e in events[k])}
    _legend(axes, "".join(keepers), rows, arrows, never)
    return shown.unit


class Shown(NamedTuple):
    """The part of a run that a timeline shows."""

    start: float  # in seconds since 1970
    length: float  # in seconds

    @property
    def unit(self) -> str:
        return "seconds" if self.length > 2 else "milliseconds"

    def width(self, seconds: float) -> float:
        """So many seconds, in the unit of the axis."""
        return seconds if self.unit == "seconds" else 1e3 * seconds

    def x(self, time: float) -> float:
        """Where a time stands on the axis."""
        return self.width(time - self.start)

    def has(self, time: float) -> bool:
        return 0 <= time - self.start <= self.length

    def touches(self, begin: float) -> bool:
        """Whether something that begins then may be seen: it takes less than the whole length."""
        return -self.length < begin - self.start < self.length


def _bar(axes, shown: Shown, row: int, begin: float, seconds: float, colour: str) -> None:
    # Not barh: a picture has many of these, and it takes four times as long.
    corner, width = (shown.x(begin), row - 0.25), shown.width(seconds)
    axes.add_patch(Rectangle(corner, width, 0.5, facecolor=colour))


def _step(axes, shown: Shown, row: int, event: dict, computed_elsewhere: bool) -> None:
    """Draws a step: a line where it begins, then its phases. With `computed_elsewhere`, the picture
    has better measurements of when the worker computed."""
    at = trace.began(event)
    axes.plot([shown.x(at)] * 2, [row - 0.32, row + 0.32], color=palette.INK, lw=1)
    for name in ("pull", "compute", "push"):
        if name != "compute" or not computed_elsewhere:
            _bar(axes, shown, row, at, event[name], palette.PHASES[name])
        at += event[name]


def _pull(axes, shown: Shown, row: int, event: dict, made: dict[int, float]) -> None:
    """Draws an arrow from the read on the ps to the worker. `made`: when each update was made."""
    if event.get("out") is not None:
        read = event["counted"] - event["out"]
    else:  # a synchronous worker reads once the update is made that it has waited for
        read = max(trace.began(event), made.get(event["pulled_at"], 0))
    got = trace.began(event) + event["pull"]
    if read >= shown.start and got - shown.start <= shown.length:
        _arrow(axes, (shown.x(read), 0.1), (shown.x(got), row - 0.25), palette.PULL)


def _update(axes, shown: Shown, update: dict) -> None:
    """Draws a mark on the lane of the ps, with a part for each worker."""
    height = 0.56 / max(1, len(update["workers"]))
    for k, worker in enumerate(update["workers"]):
        low = -0.28 + k * height
        style = {"lw": 3.5, "solid_capstyle": "butt", "zorder": 4}
        at = [shown.x(update["time"])] * 2
        axes.plot(at, [low, low + height], color=palette.worker(worker), **style)


def _pushes(
    axes, shown: Shown, lane: dict[int, int], update: dict, events: list[list[dict]]
) -> None:
    """Draws an arrow from each worker to the update that contains its push."""
    for worker in update["workers"]:
        mine = next((e for e in events[worker] if e["global_step"] == update["number"]), None)
        if mine:
            sent = trace.began(mine) + mine["pull"] + mine["compute"]
            if sent >= shown.start:
                # An elastic push does not wait for the local steps: it may arrive before they end.
                start = shown.x(min(sent, update["time"])), lane[worker] - 0.25
                _arrow(axes, start, (shown.x(update["time"]), 0.28), palette.PUSH)


def _arrow(axes, start: tuple[float, float], end: tuple[float, float], colour: str) -> None:
    style = {"arrowstyle": "-|>,head_width=0.15,head_length=0.3", "color": colour, "lw": 1}
    axes.annotate("", end, start, zorder=3, arrowprops=style | {"shrinkA": 0, "shrinkB": 0})


def name_lanes(axes, rows: list[int], keepers: Sequence[str] = ()) -> None:
    """Names the lanes, from above: those of `keepers`, then those of the workers `rows`."""
    names = [*keepers, *(f"worker {k}" for k in rows)]
    colours = [palette.PS for _ in keepers] + [palette.worker(k) for k in rows]
    axes.set_yticks(range(len(names)), names)
    for text, colour in zip(axes.get_yticklabels(), colours):
        text.set(color=colour, fontweight="bold")
    axes.set_ylim(len(names) - 0.5, -0.55)
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
    axes.legend(
        entries.values(),
        entries,
        handler_map={tuple: HandlerTuple(None)},
        ncols=8,
        loc="upper left",
        bbox_to_anchor=(0, -0.4 / count),
        columnspacing=1.2,
        handlelength=1.2,
    )


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
