"""Draws what a run measured, in one palette: `curves.png` and its parts."""

import itertools
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from common.launch import record
from common.training import results

STYLE = Path(__file__).with_name("style.mplstyle")
PS, NETWORK, WAITING, ACCURACY = "#7b3fa0", "#f2a33a", "#d5d9df", "#1b1f24"
BELOW = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.2)}  # a legend there hides no curve
_WORKERS = ("#1f77b4", "#2a9d6f", "#c8553d", "#8c6bb1", "#b08900", "#3aa7b5", "#d6588f", "#6b7280")


def worker_colour(index: int) -> str:
    return _WORKERS[index % len(_WORKERS)]


def smooth(values, width: int) -> np.ndarray:
    """The moving average over the last `width` values (over fewer at the start)."""
    sums = np.cumsum(np.concatenate([[0.0], values]))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - width)
    return (sums[ends] - sums[starts]) / (ends - starts)


def curves(folder: Path, summary: dict) -> None:
    """Draws `curves.png`: loss (or return) and accuracy over time and over updates, timeline,
    staleness."""
    events = record.read_events(folder, summary["workers"])
    evaluations = record.read_evaluations(folder)
    with plt.style.context(STYLE):
        figure, axes = plt.subplots(2, 2, figsize=(10, 6.6), layout="constrained")
        learning(axes[0, 0], events, evaluations, "seconds")
        learning(axes[0, 1], events, evaluations, "updates")
        timeline(axes[1, 0], events)
        if "contributed" in summary["tasks"][-1]:
            contributions(axes[1, 1], summary["tasks"])
        else:
            staleness(axes[1, 1], summary["staleness"])
        axes[0, 0].legend(**BELOW, ncols=3)
        figure.suptitle(
            f"{summary['scheme']}: {summary['workers']} worker{'s'[: summary['workers'] > 1]}, "
            f"{summary['global_step']:,} updates, {summary['test_accuracy']:.1%} test accuracy on "
            f"{Path(str(summary['flags']['data'])).name}",
            fontweight="bold",
        )
        results.write(folder / "curves.png", lambda file: figure.savefig(file, format="png"))
        plt.close(figure)


def _position(events: list[list[dict]], unit: str):
    """Returns a function: event -> its x position, in `seconds` since the start or `updates`."""
    if unit == "updates":
        return lambda event: event["global_step"]
    started = min((record.began(e) for mine in events for e in mine), default=0)
    return lambda event: event["time"] - started


def learning(axes, events: list[list[dict]], evaluations: list[dict], unit: str) -> None:
    """Draws each worker's training loss and the test accuracy, over `seconds` or `updates`.

    If events have a `return`, as in reinforcement learning, draws it in place of the loss.
    """
    position = _position(events, unit)
    what = "return" if any("return" in e for mine in events for e in mine[:1]) else "loss"
    for worker, mine in enumerate(events):
        if mine:
            width = max(1, len(mine) // 50)
            colour = worker_colour(worker)
            axes.plot([], [], color=colour, label=f"{what}, worker {worker}")
            # One curve per trial, if a worker trains several networks.
            for _, some in itertools.groupby(mine, lambda e: e.get("trial")):
                part = list(some)
                values = smooth([e[what] for e in part], width)
                axes.plot([position(e) for e in part], values, color=colour)
    name = "time" if unit == "seconds" else unit
    title = f"{what.title()} and test accuracy over {name}"
    axes.set(title=title, xlabel=unit, ylabel=f"training {what}")
    axes.set_ylim(bottom=0)
    right = axes.twinx()
    right.grid(False)
    right.spines["right"].set_visible(True)
    known = [e for e in evaluations if position(e) >= 0]
    accuracy = [e["test_accuracy"] for e in known]
    right.plot([position(e) for e in known], accuracy, "o-", ms=3, color=ACCURACY)
    axes.plot([], [], "o-", ms=3, color=ACCURACY, label="test accuracy")
    right.set(ylim=(0, 1.02), ylabel="test accuracy")


def losses(axes, events: list[list[dict]], unit: str, colour: str, label: str) -> None:
    """Draws one curve: the training loss of all workers, over `seconds` or mini-`batches`."""
    batches = max(mine[0]["local_step"] for mine in events if mine)  # per update
    every = sorted((e for mine in events for e in mine), key=lambda e: e["time"])
    position = _position(events, "seconds")
    at = [position(e) if unit == "seconds" else batches * (i + 1) for i, e in enumerate(every)]
    values = smooth([e["loss"] for e in every], max(1, len(every) // 40))
    axes.plot(at, values, color=colour, label=label)
    name = "time" if unit == "seconds" else f"mini-{unit}"
    axes.set(title=f"Loss over {name}", xlabel=unit, ylabel="training loss")
    axes.locator_params(axis="x", nbins=6)
    axes.set_ylim(bottom=0)


def timeline(axes, events: list[list[dict]], cycles: int = 6) -> None:
    """Draws what each worker does during a few steps in the middle of the run. A worker that only
    serves has no events, so it gets no row."""
    rows = [k for k, mine in enumerate(events) if mine]
    busy = [events[k] for k in rows]
    if busy:
        starts = np.array([record.began(e) for e in busy[0]])
        origin, length = starts[0], busy[0][-1]["time"] - starts[0]
        if len(starts) > cycles:  # a stretch of typical length in the middle third
            lengths = starts[cycles:] - starts[:-cycles]
            third = len(lengths) // 3
            middle = np.argsort(lengths[third : 2 * third + 1])
            k = third + middle[len(middle) // 2]
            origin, length = starts[k], lengths[k]
        for row, (worker, mine) in enumerate(zip(rows, busy)):
            axes.barh(row, 1e3 * length, left=0, height=0.6, color=WAITING)
            for e in mine:
                at = record.began(e) - origin
                if not -length < at < length:
                    continue
                parts = ((e["pull"], NETWORK), (e["compute"], worker_colour(worker)),
                         (e["push"], NETWORK))  # fmt: skip
                for seconds, colour in parts:
                    axes.barh(row, 1e3 * seconds, left=1e3 * at, height=0.6, color=colour)
                    at += seconds
        axes.set_xlim(0, 1e3 * length)
    for label, colour in (("computing", worker_colour(0)), ("pull, push", NETWORK),
                          ("waiting, between steps", WAITING)):  # fmt: skip
        axes.barh(0, 0, color=colour, label=label)
    axes.legend(**BELOW, ncols=3)
    axes.set_yticks(range(len(rows)), [f"worker {k}" for k in rows])
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    axes.set(title="A few steps in the middle of the run", xlabel="milliseconds")


def staleness(axes, measured: dict) -> None:
    """Draws a histogram: how many updates by others came between a pull and its push."""
    counts = {int(s): n for s, n in measured["histogram"].items()}
    total = max(1, sum(counts.values()))
    axes.bar(list(counts), [n / total for n in counts.values()], color=PS, width=0.7)
    axes.axvline(measured["mean"], color=ACCURACY, ls="--", label=f"mean {measured['mean']:.2f}")
    if measured["theory"]:
        label = f"if evenly spread: {measured['theory']:.2f}"
        axes.axvline(measured["theory"], color=NETWORK, ls=":", label=label)
    axes.legend(**BELOW, ncols=2)
    axes.set_xlim(-0.6, max([1, *counts]) + 0.6)
    axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    axes.set(title="Staleness", xlabel="updates by others between pull and push",
             ylabel="share of updates")  # fmt: skip


def contributions(axes, tasks: list[dict]) -> None:
    """Draws how many gradients of each worker went into updates, and how many came too late."""
    workers = [task for task in tasks if task["job"] == "worker"]
    for k, task in enumerate(workers):
        axes.barh(k, task["contributed"], height=0.6, color=worker_colour(k))
        axes.barh(k, task["dropped"], left=task["contributed"], height=0.6, color=WAITING)
        text = f"{task['contributed']} in updates, {task['dropped']} dropped"
        axes.text(0, k - 0.42, text, va="center", fontsize=9)
    axes.set_yticks(range(len(workers)), [f"worker {k}" for k in range(len(workers))])
    axes.set_ylim(len(workers) - 0.5, -0.75)
    axes.grid(False, axis="y")
    axes.set(title="Gradients in updates, by worker", xlabel="gradients")
