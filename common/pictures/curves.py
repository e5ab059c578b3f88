"""`curves.png`: its panels, and what an example draws instead, with a `curves.py` in its folder."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import matplotlib

matplotlib.use("Agg")  # a run needs no window
import matplotlib.pyplot as plt

from common.pictures import palette, plots, png, timeline
from common.record import metric, results, trace
from common.record.words import counted
from common.told import about


def _tested(summary: dict) -> str:
    if metric.key(summary) is None:
        return ""
    data = Path(str(summary["flags"]["data"])).name
    return f"{metric.value(summary, 1)} {metric.name(summary)} on {data}"


class Curves(NamedTuple):
    """What an example's `curves.py` may say, as `CURVES = Curves(...)`; what it leaves out is as in
    most examples. `events` is a list of events for each worker: see `trace.read_events`.

    Attributes:
        learning: `learning(axes, events)` draws the first panel.
        apart: `apart(axes, summary, events)` draws the last panel of the first row, in place of
            `plots.apart`.
        timeline: `timeline(axes, events)` draws the panel at the bottom, in place of
            `timeline.draw`.
        tested: `tested(summary)` returns what the title says about the test.
        computing: `computing(folder)` returns when each worker computed, from files of the results
            folder: worker -> (begin, end) of each stretch, in seconds since 1970. For workers that
            share a step, since the events do not tell.
    """

    learning: Callable = plots.learning
    apart: Callable | None = None
    timeline: Callable | None = None
    tested: Callable[[dict], str] = _tested
    computing: Callable[[Path], dict] = lambda folder: {}


def read(example: Path | None) -> Curves:
    """The `CURVES` of the example in that folder; None: the usual ones."""
    return about.declared(example / "curves.py", "CURVES", Curves()) if example else Curves()


def draw(folder: Path, summary: dict, example: Path | None = None) -> None:
    """Draws `curves.png` of the run in the results folder: loss and metric over updates, with the
    time marked; staleness, or what else kept the workers apart; a timeline. `example` is the
    example's folder."""
    own = read(example)
    events = trace.read_events(folder, summary["workers"])
    evaluations = trace.read_evaluations(folder)
    updates = trace.read_updates(folder, events)
    computing, keeper = own.computing(folder), timeline.keeper_of(summary)
    with plt.style.context(palette.STYLE):
        height = timeline.height(events, keeper, computing)
        figure = plt.figure(figsize=(10, 3.4 + height), layout="constrained")
        top, bottom = figure.add_gridspec(2, 1, height_ratios=[3.2, height])
        panels = min(3, 1 + len(evaluations))  # one evaluation, at the end, makes no curve
        *first, last = map(figure.add_subplot, top.subgridspec(1, panels))
        if first:
            own.learning(first[0], events)
        if first[1:]:
            plots.tested(first[1], events, evaluations)
        if own.apart:
            own.apart(last, summary, events)
        else:
            plots.apart(last, summary, events, computing)
        lanes = figure.add_subplot(bottom)
        if own.timeline:
            own.timeline(lanes, events)
        else:
            timeline.draw(lanes, events, updates, 0, keeper, computing)
        figure.suptitle(title(summary, own), fontweight="bold")
        figure.get_layout_engine().execute(figure)  # a second layout knows the ticks
        picture = png.small(png.drawn(figure, png.SHARP * png.REDUCED))
        results.write(folder / "curves.png", lambda file: file.write(picture))
        plt.close(figure)


def title(summary: dict, own: Curves) -> str:
    """The scheme, the size of the run, and the test."""
    size = [counted(summary["workers"], "worker"), f"{summary['global_step']:,} updates"]
    asleep = summary["flags"].get("compute_ms")
    how = f"\na mini-batch takes at least {asleep:g} ms, asleep" if asleep else ""
    return f"{summary['scheme']}: " + ", ".join(filter(None, [*size, own.tested(summary)])) + how
