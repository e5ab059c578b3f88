"""Draws a simulated run for the sliders: who does what, how stale, does it learn."""

import grid
import numpy as np
from journal import Journal

from common.pictures import palette, plots, timeline

SHOWN = 4  # workers in the timeline
WORST = 3  # somewhat more than the loss of guessing one of ten classes


def draw(axes, cluster, journal: Journal) -> None:
    """Draws three panels: `axes` becomes the first. The run must have learned something: not with
    `--model none`."""
    figure, found = axes.figure, journal.summary(cluster)
    top, bottom = figure.add_gridspec(2, 1, height_ratios=[1, 1.15])
    left, right = top.subgridspec(1, 2)
    axes.set_subplotspec(left)
    learned(axes, journal)
    stale = figure.add_subplot(right)
    plots.staleness(stale, found["staleness"])
    stale.legend(loc="upper left", fontsize=7)
    stale.set_title(f"Staleness: mean {found['staleness']['mean']:.1f}", fontsize=10)
    lanes(figure.add_subplot(bottom), journal)
    flags = journal.flags
    figure.suptitle(f"n = {flags.workers}: {found['examples_per_second']:,.0f} examples/s, "
                    f"test accuracy {found['test_accuracy']:.1%}", fontsize=11)  # fmt: skip


def learned(axes, journal: Journal) -> None:
    """The test accuracy over simulated seconds."""
    at = [e["time"] for e in journal.evaluations]
    axes.plot(at, [100 * e["test_accuracy"] for e in journal.evaluations], color=palette.INK)
    axes.set(xlabel="simulated seconds", ylabel="%", ylim=(0, 102), xlim=(0, None))
    axes.set_title("Test accuracy", fontsize=10)


def lanes(axes, journal: Journal) -> None:
    """The timeline of the first workers, at the end of the run."""
    events = [list(mine) for mine in journal.recent[:SHOWN]]
    updates = [{"time": e["counted"], "number": e["global_step"], "workers": [k]}
               for k, mine in enumerate(events) for e in mine]  # fmt: skip
    unit = timeline.draw(axes, events, updates, 3)
    axes.set_title(
        f"Who does what, when? The first workers and their updates, in {unit}", fontsize=10
    )


def rates(axes, tried, found: dict[str, np.ndarray]) -> None:
    """The test loss over the learning rate: the median of the seeds, their range, and a ring around
    the best rate of each kind. Above `WORST`, it is cut off.

    Args:
        tried: the rates.
        found: from `grid.losses_by_rate`.
    """
    for (kind, losses), colour in zip(found.items(), palette.series(len(found))):
        losses = np.where(np.isinf(losses), np.nan, losses)
        median, k = np.median(losses, axis=1), grid.best(found[kind])
        axes.fill_between(tried, losses.min(axis=1), losses.max(axis=1), color=colour, alpha=0.2,
                          lw=0)  # fmt: skip
        axes.plot(tried, median, "o-", ms=4, color=colour, label=kind)
        axes.plot(tried[k], median[k], "o", ms=11, mfc="none", mew=1.5, color=colour)
    every = np.concatenate([each[np.isfinite(each)] for each in found.values()])
    limits = 0.95 * every.min(), 1.05 * min(every.max(), WORST)
    axes.set(xscale="log", xlabel="learning rate", ylabel="test loss", ylim=limits)
    axes.set_xticks(tried, [f"{rate:g}" for rate in tried])
    axes.minorticks_off()
    axes.legend(fontsize=8)
