"""What curves.png shows of this example; see common/pictures/curves.py."""

import itertools

from common.pictures import palette, plots, timeline
from common.pictures.curves import Curves
from common.record import trace


def began(events: list[list[dict]]) -> float:
    """When the first worker began its first step."""
    return min(trace.began(mine[0]) for mine in events if mine)


def learning(axes, events: list[list[dict]]) -> None:
    """Draws the training loss of each network over seconds, in its worker's colour."""
    start = began(events)
    for worker, mine in enumerate(events):
        for _, group in itertools.groupby(mine, lambda e: e["trial"]):
            part = list(group)
            at = [e["time"] - start for e in part]
            losses = plots.smooth([e["loss"] for e in part], max(1, len(mine) // 50))
            plots.worker_curve(axes, worker, len(events), at, losses)
    axes.set(title="Does it learn? A curve for each network", xlabel="seconds")
    axes.set_ylabel("training loss, moving mean")
    plots.frame(axes, events)
    plots.logarithmic(axes)


def trials(axes, events: list[list[dict]]) -> None:
    """Draws which worker trained which network, and when."""
    start, rows = began(events), [k for k, mine in enumerate(events) if mine]
    for row, worker in enumerate(rows):
        axes.barh(row, events[worker][-1]["time"] - start, height=0.5, color=palette.WAIT)
        for trial, group in itertools.groupby(events[worker], lambda e: e["trial"]):
            mine = list(group)
            left, right = trace.began(mine[0]) - start, mine[-1]["time"] - start
            axes.barh(row, right - left, left=left, height=0.5, color=palette.worker(worker))
            axes.text((left + right) / 2, row, trial, ha="center", va="center", color="white")
    timeline.name_lanes(axes, rows)
    axes.set(
        title="Who trained which network, when? (grey: between two networks)",
        xlabel="seconds",
        xlim=(0, max(events[k][-1]["time"] for k in rows) - start),
    )


CURVES = Curves(learning=learning, timeline=trials)
