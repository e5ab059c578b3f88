"""Draws what a run measured, in one palette: the panels of `curves.png`, except the timeline.

Each panel answers one question.
"""

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullLocator

from common.pictures import palette, timeline
from common.record import metric, trace

BELOW = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.25)}  # a legend there hides no curve


def smooth(values, width: int | np.ndarray) -> np.ndarray:
    """The moving average over the last `width` values (over fewer at the start); an array holds a
    width for each value."""
    sums = np.cumsum(np.concatenate([[0.0], values]))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - width)
    with np.errstate(invalid="ignore"):  # infinite losses of a run that diverged
        return (sums[ends] - sums[starts]) / (ends - starts)


def apart(axes, summary: dict, events: list[list[dict]], computing: dict | None = None) -> None:
    """How stale the updates are; if none is stale, whose gradients came too late; if none did,
    where the time goes. The start of the run is left out. `computing`: as for `timeline.draw`."""
    tasks = [task for task in summary["tasks"] if task["job"] == "worker"]
    steady = trace.steady(events)
    measured = trace.staleness(steady)
    if measured["max"]:
        staleness(axes, measured)
        axes.set_title("How stale, without the start?")
    elif any(task.get("dropped") for task in tasks):
        contributions(axes, summary["tasks"])
    else:
        shares(axes, steady, computing or {})


def _seconds(axes, events: list[list[dict]]) -> None:
    """Marks round numbers of seconds since the start on an axis of updates."""
    every = sorted((e["time"], e["global_step"]) for mine in events for e in mine)
    if len(every) < 2:
        return
    started = min(trace.began(e) for mine in events for e in mine)
    times = np.array([time for time, _ in every]) - started
    steps = np.maximum.accumulate([step for _, step in every])
    last = times[-1]
    unit = 10.0 ** np.floor(np.log10(max(last, 1e-3)))
    unit = next(unit * k for k in (0.2, 0.5, 1, 2, 5) if last / (unit * k) < 5)
    for at in np.arange(unit, last, unit):
        x = np.interp(at, times, steps)
        axes.axvline(x, color=palette.SECONDS, lw=0.8, ls=(0, (4, 3)), zorder=1)
        axes.text(
            x,
            1.0,
            f"{at:g} s",
            transform=axes.get_xaxis_transform(),
            ha="center",
            va="bottom",
            fontsize=7.5,
            color="#5b6470",
        )
    axes.set_title(axes.get_title(loc="left"), pad=15)


def _curve(axes, x: list, y: list, **style) -> None:
    """A line; points alone if they are too few to say what lies between them."""
    few = len(x) < 10
    axes.plot(x, y, "o" if few else "-", ms=5, **style)


def learning(
    axes, events: list[list[dict]], time: bool = True, log: bool = False, what: str = "loss"
) -> None:
    """Draws each worker's training loss over updates, on a logarithmic axis: the mean over the last
    fiftieth of its steps; with `log`, if updates have such an axis, too, over the last tenth of
    those so far.

    `what`: the key of an event that is drawn; `time`: whether round numbers of seconds are marked.
    """
    for worker, mine in enumerate(events):
        if mine:
            width = 1 + np.arange(len(mine)) // 10 if log else max(1, len(mine) // 50)
            values = smooth([e[what] for e in mine], width)
            worker_curve(axes, worker, len(events), [e["global_step"] for e in mine], values)
    axes.set(title="Does it learn?", xlabel="updates", ylabel=f"training {what}, moving mean")
    frame(axes, events)
    if what == "loss":
        logarithmic(axes)
    if time:
        _seconds(axes, events)


def worker_curve(axes, worker: int, workers: int, x: list, y: np.ndarray) -> None:
    """Draws a curve in the colour of a worker, one of `workers`. Where curves coincide, the wider
    ones below remain visible."""
    _curve(axes, x, y, color=palette.worker(worker), lw=3 - 1.6 * worker / max(1, workers - 1))


def logarithmic(axes, unit: str = "") -> None:
    """Makes the vertical axis logarithmic, unless a curve has a value that is not positive."""
    values = np.concatenate([np.asarray(line.get_ydata(), float) for line in axes.lines] or [[]])
    values = values[np.isfinite(values)]
    if not len(values) or values.min() <= 0:
        return
    axes.set_yscale("log")
    axes.set_ylim(values.min() / 1.15, values.max() * 1.15)
    decades = np.log10(values.max() / values.min())
    axes.yaxis.set_major_locator(LogLocator(subs=(1,) if decades > 3 else (1, 2, 5)))
    axes.yaxis.set_major_formatter(f"{{x:g}}{unit}")
    axes.yaxis.set_minor_locator(NullLocator())


def frame(axes, events: list[list[dict]]) -> None:
    """What is around the curves of workers: the axes, and which worker has which colour."""
    axes.locator_params(axis="x", nbins=5)
    axes.set_ylim(bottom=0)
    there = [worker for worker, mine in enumerate(events) if mine]
    if len(there) > 1:
        handles = [Line2D([], [], color=palette.worker(k), label=f"worker {k}") for k in there]
        columns = 4 if len(there) < 5 else 3  # as wide as the panel
        axes.legend(handles=handles, **BELOW, ncols=columns, columnspacing=1, handlelength=1.2)


def tested(axes, events: list[list[dict]], evaluations: list[dict], time: bool = True) -> None:
    """Draws the test error of the global parameters over updates, in percent on a logarithmic axis,
    since accuracies near 100% look alike; or another metric than the accuracy. Only evaluations on
    as many examples as the first one are comparable. With `--patience`, a ring is around the best
    one."""
    size, best = evaluations[0].get("examples"), evaluations[-1].get("best_step")
    key, name = metric.key(evaluations[0]), metric.name(evaluations[0])
    evaluations = [e for e in evaluations if e.get("examples") == size and key in e]
    x = [e["global_step"] for e in evaluations]
    y, percent = [e[key] for e in evaluations], key in metric.ACCURACIES
    if percent:  # no error at all is drawn as half an example
        y = [100 * (1 - each or 0.5 / (size or 1000)) for each in y]
        name = name.replace("accuracy", "error")
    _curve(axes, x, y, color=palette.INK)
    if best in x:
        at = x.index(best)
        axes.plot(best, y[at], "o", markersize=9, markerfacecolor="none", color=palette.INK)
        axes.annotate(
            "kept", (best, y[at]), (0, 14), textcoords="offset points", ha="center",
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1},
        )  # fmt: skip
    last = max([*x, *(mine[-1]["global_step"] for mine in events if mine), 1])
    axes.set(
        title="Does it generalise?",
        xlabel="updates",
        ylabel=name,
        xlim=(-0.04 * last, 1.04 * last),
    )
    if percent:
        logarithmic(axes, "%")
    axes.locator_params(axis="x", nbins=5)
    if time:
        _seconds(axes, events)


def losses(axes, events: list[list[dict]], unit: str, colour: str, label: str) -> None:
    """Draws one curve: the training loss of all workers, over `seconds` or mini-`batches`."""
    batches = max(mine[0]["local_step"] for mine in events if mine)  # per update
    every = sorted((e for mine in events for e in mine), key=lambda e: e["time"])
    started = min((trace.began(e) for e in every), default=0)
    at = [
        e["time"] - started if unit == "seconds" else batches * (i + 1) for i, e in enumerate(every)
    ]
    values = smooth([e["loss"] for e in every], max(1, len(every) // 40))
    axes.plot(at, values, color=colour, label=label)
    name = "time" if unit == "seconds" else f"mini-{unit}"
    axes.set(title=f"Loss over {name}", xlabel=unit, ylabel="training loss")
    axes.locator_params(axis="x", nbins=6)
    axes.set_ylim(bottom=0)


def staleness(axes, measured: dict) -> None:
    """Draws a histogram: how many updates by others came between a pull and its push."""
    counts = {int(s): n for s, n in measured["histogram"].items()}
    total = max(1, sum(counts.values()))
    axes.bar(list(counts), [100 * n / total for n in counts.values()], color=palette.PS, width=0.7)
    axes.axvline(measured["mean"], color=palette.INK, ls="--", label=f"mean {measured['mean']:.2f}")
    width = max(1, *counts)
    if measured["theory"] and abs(measured["theory"] - measured["mean"]) > 0.1 * width:
        label = f"if evenly spread {measured['theory']:.2f}"
        axes.axvline(measured["theory"], color=palette.INK, ls=":", label=label)
    axes.legend(**BELOW, ncols=2, columnspacing=1, handlelength=1.5)
    axes.set_xlim(-0.6, width + 0.6)
    axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    axes.yaxis.set_major_formatter("{x:.0f}%")
    axes.set(
        title="How stale are the updates?",
        xlabel="updates by others, pull to push",
        ylabel="share of the updates",
    )


def shares(axes, events: list[list[dict]], computing: dict) -> None:
    """Draws where each worker's time goes: pull, compute, push, wait."""
    rows = timeline.lanes(events, computing)
    left = np.zeros(len(rows))
    parts = [timeline.shares(events[k], computing.get(k, ())) for k in rows]
    for name, colour in palette.PHASES.items():
        values = np.array([100 * each[name] for each in parts])
        if values.any():
            axes.barh(range(len(rows)), values, left=left, height=0.6, color=colour, label=name)
        left += values
    axes.set_yticks(range(len(rows)), [f"worker {k}" for k in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.xaxis.set_major_formatter("{x:.0f}%")
    axes.grid(False, axis="y")
    axes.legend(
        loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=4, columnspacing=1, handlelength=1
    )
    axes.set(title="Where does the time go?", xlim=(0, 100))


def contributions(axes, tasks: list[dict]) -> None:
    """Draws how many gradients of each worker went into updates, and how many came too late."""
    workers = [task for task in tasks if task["job"] == "worker"]
    for k, task in enumerate(workers):
        axes.barh(k, task["contributed"], height=0.5, color=palette.worker(k))
        axes.barh(k, task["dropped"], left=task["contributed"], height=0.5, color=palette.WAIT)
        text = f"{task['contributed']} in updates, {task['dropped']} too late"
        axes.text(0, k - 0.4, text, va="center", fontsize=9)
    axes.set_yticks(range(len(workers)), [f"worker {k}" for k in range(len(workers))])
    axes.set_ylim(len(workers) - 0.5, -0.75)
    axes.grid(False, axis="y")
    axes.set(title="Who came too late?", xlabel="gradients")
