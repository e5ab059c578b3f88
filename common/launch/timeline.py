"""Draws who does what, when: a lane for the ps and one for each worker."""

import numpy as np
from matplotlib.patches import Patch

from common.launch import palette, record

ARROWS = 16  # more would hide the lanes


def height(events: list[list[dict]], ps: int) -> float:
    """The inches that the picture needs, legend included."""
    return 1.05 + 0.42 * (sum(map(bool, events)) + bool(ps))


def stretch(events: list[dict], cycles: int) -> tuple[float, float]:
    """Start and length, in seconds, of a typical stretch of a worker's `cycles` steps: in the
    middle third of the run, of median length there."""
    starts = np.array([record.began(e) for e in events])
    if len(starts) <= cycles:
        return starts[0], events[-1]["time"] - starts[0]
    lengths = starts[cycles:] - starts[:-cycles]
    third = len(lengths) // 3
    middle = np.argsort(lengths[third : 2 * third + 1])
    k = third + middle[len(middle) // 2]
    return starts[k], lengths[k]


def shares(events: list[dict]) -> dict[str, float]:
    """The share of a worker's time in each phase, from its first step to its last."""
    whole = events[-1]["time"] - record.began(events[0])
    parts = {name: sum(e[name] for e in events) for name in ("pull", "compute", "push")}
    parts["wait"] = max(0.0, whole - sum(parts.values()))
    return {name: part / (whole or 1) for name, part in parts.items()}


def draw(axes, events: list[list[dict]], updates: list[dict], ps: int = 1, cycles: int = 0) -> None:
    """Draws a few steps in the middle of the run: each worker's pull, compute, push and wait, and
    each update on the ps in the colour of the worker (or workers) that pushed it.

    Args:
        axes: where.
        events: of each worker; one without events gets no lane.
        updates: `time` and `workers` of each; see `record.read_updates`.
        ps: how many there are; none has a lane of its own.
        cycles: steps of the first worker that fit in; default: so that the arrows stay few.
    """
    rows = [k for k, mine in enumerate(events) if mine]
    if not rows:
        return
    ps = ps if updates else 0  # unknown: the loop does not ask the ps for its clock
    first = 1 if ps else 0
    origin, length = stretch(events[rows[0]], cycles or max(2, round(8 / len(rows))))
    scale, unit = (1, "seconds") if length > 2 else (1e3, "milliseconds")
    within = [u for u in updates if 0 <= u["time"] - origin <= length]
    arrows = bool(ps) and sum(len(u["workers"]) for u in within) <= ARROWS
    for row, worker in enumerate(rows, first):
        axes.barh(row, scale * length, left=0, height=0.5, color=palette.WAIT)
        for e in events[worker]:
            at = record.began(e) - origin
            if not -length < at < length:
                continue
            axes.plot([scale * at] * 2, [row - 0.32, row + 0.32], color=palette.INK, lw=1)
            for name in ("pull", "compute", "push"):
                axes.barh(row, scale * e[name], left=scale * at, height=0.5,
                          color=palette.PHASES[name])  # fmt: skip
                at += e[name]
            if arrows and e.get("counted") and e["pull"]:
                read, got = e["counted"] - e["out"], record.began(e) + e["pull"]
                start, end = (read - origin, 0.1), (got - origin, row - 0.25)
                if start[0] >= 0 and end[0] <= length:
                    _arrow(axes, scale, start, end, palette.PULL)
    if ps:
        axes.barh(0, scale * length, left=0, height=0.16, color=palette.PS, alpha=0.35)
    for update in within if ps else ():
        at, share = update["time"] - origin, 0.56 / max(1, len(update["workers"]))
        for k, worker in enumerate(update["workers"]):
            low = -0.28 + k * share
            axes.plot([scale * at] * 2, [low, low + share], color=palette.worker(worker), lw=3.5,
                      solid_capstyle="butt", zorder=4)  # fmt: skip
            mine = next((e for e in events[worker] if e["global_step"] == update["number"]), None)
            sent = mine and record.began(mine) + mine["pull"] + mine["compute"] - origin
            if arrows and mine and sent >= 0:
                # An elastic push does not wait for the local steps: it may arrive before they end.
                start = (min(sent, at), rows.index(worker) + first - 0.25)
                _arrow(axes, scale, start, (at, 0.28), palette.PUSH)
    _label(axes, rows, first, scale * length, unit)


def _arrow(axes, scale: float, start: tuple, end: tuple, colour: str) -> None:
    axes.annotate("", (scale * end[0], end[1]), (scale * start[0], start[1]), zorder=3,
                  arrowprops={"arrowstyle": "-|>,head_width=0.15,head_length=0.3", "color": colour,
                              "lw": 1, "shrinkA": 0, "shrinkB": 0})  # fmt: skip


def _label(axes, rows: list[int], first: int, length: float, unit: str) -> None:
    names = ["ps"] * first + [f"worker {k}" for k in rows]
    axes.set_yticks(range(len(names)), names)
    colours = [palette.PS] * first + [palette.worker(k) for k in rows]
    for text, colour in zip(axes.get_yticklabels(), colours):
        text.set(color=colour, fontweight="bold")
    axes.set(xlim=(0, length), ylim=(len(names) - 0.5, -0.55))
    axes.set_xlabel(unit, loc="right")
    axes.set_title("Who does what, when? A few steps in the middle of the run")
    axes.grid(False, axis="y")
    handles = [Patch(color=colour, label=name) for name, colour in palette.PHASES.items()]
    mark = {"marker": "|", "ls": "", "ms": 11}
    handles += axes.plot([], [], color=palette.INK, label="a step begins", **mark)
    if first:
        handles += axes.plot([], [], color=palette.worker(rows[0]), mew=3.5,
                             label="update, in its worker's colour", **mark)  # fmt: skip
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(0, -0.4 / len(names)),
                ncols=6, columnspacing=1.2, handlelength=1.2)  # fmt: skip


def describe(events: list[list[dict]]) -> str:
    """What the picture shows, in words."""
    said = []
    for k, mine in enumerate(events):
        if mine:
            parts = [f"{name} {share:.0%}" for name, share in shares(mine).items() if share > 0.004]
            said.append(f"worker {k}: {', '.join(parts)}")
    return f"Timeline of a few steps. Shares of the whole run: {'; '.join(said)}"
