"""Draws for the notebooks: one run, several runs side by side, and diagrams of processes."""

from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np

from common.launch import plots

if TYPE_CHECKING:
    from common.teach.notebook import Run


def overview(run: "Run", unit: str = "updates") -> None:
    """Draws what a run measured: learning over `updates` or `seconds`, staleness, timeline."""
    figure = plt.figure(figsize=(9, 4.8), layout="constrained")
    top, bottom = figure.add_gridspec(2, 1, height_ratios=[3, 0.5 + 0.35 * len(run.events)])
    left, right = (figure.add_subplot(part) for part in top.subgridspec(1, 2, width_ratios=[9, 8]))
    plots.learning(left, run.events, run.evaluations, unit)
    left.legend(**plots.BELOW, ncols=3)
    plots.staleness(right, run.summary["staleness"])
    below = figure.add_subplot(bottom)
    plots.timeline(below, run.events)
    below.legend(loc="lower right", bbox_to_anchor=(1, 0.98), ncols=3)
    plt.show()


def compare(runs: "dict[str, Run]") -> None:
    """Draws the training loss of several runs, over mini-batches and over seconds."""
    _, axes = plt.subplots(1, 2, figsize=(9, 3.2), sharey=True, layout="constrained")
    for k, (label, run) in enumerate(runs.items()):
        plots.losses(axes[0], run.events, "batches", plots.worker_colour(k), label)
        plots.losses(axes[1], run.events, "seconds", plots.worker_colour(k), label)
    axes[1].set_ylabel("")
    axes[1].legend()
    plt.show()


COLOURS = {"ps": plots.PS, "client": plots.ACCURACY, "data": plots.WAITING} | {
    f"worker {k}": plots.worker_colour(k) for k in range(8)
}


def diagram(
    boxes: dict[str, tuple[float, float, str]],
    arrows: list[tuple[str, str, str]] = (),
    size: tuple[float, float] = (8, 3),
    title: str = "",
) -> None:
    """Draws processes as boxes, and what they send each other as arrows.

    Args:
        boxes: text (one or more lines) -> x, y of the box's centre (one unit is about the width and
            the height of a box) and its kind, a key of `COLOURS`.
        arrows: (from, to, label) each.
        size: width and height in inches.
        title: above the figure.
    """
    _, axes = plt.subplots(figsize=size, layout="constrained")
    at = {text: np.array(place[:2], float) for text, place in boxes.items()}
    edges = {}
    for text, (x, y, kind) in boxes.items():
        colour = "black" if kind == "data" else "white"
        box = {"boxstyle": "round,pad=0.6", "fc": COLOURS[kind], "ec": "none"}
        drawn = axes.text(x, y, text, ha="center", va="center", color=colour, zorder=3, bbox=box)
        edges[text] = drawn.get_bbox_patch()  # arrows start and end there
    for a, b, label in arrows:
        both = (b, a, label) in arrows or any(x == b and y == a for x, y, _ in arrows)
        axes.annotate(
            "", at[b], at[a], zorder=4,
            arrowprops={"arrowstyle": "-|>", "color": plots.NETWORK, "lw": 2, "patchA": edges[a],
                        "patchB": edges[b], "shrinkA": 6, "shrinkB": 6,
                        "connectionstyle": f"arc3,rad={0.18 if both else 0}"},
        )  # fmt: skip
        way = at[b] - at[a]
        aside = np.array([way[1], -way[0]]) * (0.13 if both else 0.0)
        axes.text(*(at[a] + at[b]) / 2 + aside, label, ha="center", va="center", fontsize=9,
                  zorder=5, bbox={"fc": "white", "ec": "none", "pad": 1.5})  # fmt: skip
    places = np.array(list(at.values()))
    (left, low), (right, high) = places.min(0) - 0.6, places.max(0) + 0.6
    axes.set(xlim=(left, right), ylim=(low, high), title=title)
    axes.axis("off")
    plt.show()
