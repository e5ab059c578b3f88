"""Draws a simulated run for the sliders: who does what, how stale, does it learn."""

from journal import Journal

from common.pictures import palette, plots, timeline

SHOWN = 4  # workers in the timeline


def draw(axes, cluster, journal: Journal) -> None:
    """Draws three panels in place of `axes`. The run must have learned something: not with
    `--model none`."""
    figure, found = axes.figure, journal.summary(cluster)
    axes.remove()
    top, bottom = figure.add_gridspec(2, 1, height_ratios=[1, 1.15])
    left, right = (figure.add_subplot(part) for part in top.subgridspec(1, 2))
    learned(left, journal)
    plots.staleness(right, found["staleness"])
    right.legend(loc="upper left", fontsize=7)
    right.set_title(f"Staleness: mean {found['staleness']['mean']:.1f}", fontsize=10)
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
