"""Draws for the notebooks: what runs measured, one question at a time, and diagrams of processes.

Every picture has a text that describes it, for readers who cannot see it.
"""

import matplotlib.pyplot as plt
import numpy as np
from IPython.display import display

from common.pictures import curves, palette, plots, png
from common.pictures import timeline as lanes
from common.record import metric
from common.teach.running import Run


def finished(figure, scale: float = png.SHARP) -> bytes:
    """Returns the figure as a PNG with `scale` times its pixels, and closes it."""
    if layout := figure.get_layout_engine():
        layout.execute(figure)  # a second layout knows the ticks
    data = png.drawn(figure, scale)
    plt.close(figure)
    return data


def picture(alt: str) -> None:
    """Shows the current figure, in place of `plt.show()`. `alt` describes it."""
    data = png.small(finished(plt.gcf()))
    about = {"alt": alt, "width": png.width(data)}
    display({"image/png": data, "text/plain": alt}, metadata={"image/png": about}, raw=True)


def learning(run: Run, log: bool = False) -> None:
    """Does it learn? Draws loss and test error, or another metric, over updates, with the time
    marked; or with `log`, for a run that learns fast, with updates on a logarithmic axis."""
    _, axes = plt.subplots(1, 2, figsize=(9, 2.8), layout="constrained")
    if log:
        plots.learning(axes[0], run.events, time=False, log=True)
    else:
        curves.read(run.example).learning(axes[0], run.events)
    plots.tested(axes[1], run.events, run.evaluations, time=not log)
    if log:
        for axis in axes:
            axis.set(xscale="log", xlim=(1, None))
            axis.xaxis.set_major_formatter("{x:,.0f}")
        axes[1].lines[0].set(marker="o", markersize=3)  # few points fill the first decade
    final = run.summary
    drawn = metric.name(final).replace("accuracy", "error")
    picture(
        f"Training loss and {drawn} over {final['global_step']:,} updates. "
        f"The {metric.name(final).removeprefix('test ')} ends at {metric.value(final, 1)}."
    )


def timeline(run: Run, cycles: int = 0) -> None:
    """Who does what, when? Draws `cycles` steps in the middle of the run."""
    keeper = lanes.keeper_of(run.summary)
    computing = curves.read(run.example).computing(run.folder)
    size = 9, lanes.height(run.events, keeper, computing)
    _, axes = plt.subplots(figsize=size, layout="constrained")
    lanes.draw(axes, run.events, run.updates, cycles, keeper, computing)
    picture(lanes.describe(run.steady, computing, keeper if run.updates else ""))


def staleness(run: Run, found: dict | None = None) -> None:
    """How stale are the updates? Draws `found`, by default the run's without its start."""
    _, axes = plt.subplots(figsize=(6, 2.8), layout="constrained")
    steady, found = found is None, found or run.staleness
    plots.staleness(axes, found)
    if steady:
        axes.set_title("How stale are the updates, after the first second?")
    total = sum(found["histogram"].values())
    shares = [
        f"{s}: {n / total:.0%}".replace(": 0%", ": under 1%") for s, n in found["histogram"].items()
    ]
    often = [int(s) for s, n in found["histogram"].items() if n > 0.005 * total]
    said = f"Share of the updates with staleness {', '.join(shares)}."
    if len(shares) > 6:
        said = f"A hill: nearly all updates have a staleness from {min(often)} to {max(often)}."
    picture(f"Histogram of the staleness. {said} Mean {found['mean']:.2f}, maximum {found['max']}.")


def phases(runs: dict[str, list[Run]]) -> dict[str, dict[str, float]]:
    """Where does the time of a mini-batch go? Draws the mean of `per_batch` over the runs of each
    kind, and returns it."""
    found = {label: [run.per_batch for run in some] for label, some in runs.items()}
    spent = {
        label: {name: np.mean([parts[name] for parts in each]) for name in palette.PHASES}
        for label, each in found.items()
    }
    _, axes = plt.subplots(figsize=(8, 1 + 0.55 * len(spent)), layout="constrained")
    left = np.zeros(len(spent))
    for name, colour in palette.PHASES.items():
        values = [parts[name] for parts in spent.values()]
        axes.barh(list(spent), values, left=left, color=colour, label=name, height=0.55)
        left += values
    axes.set(title="Where the time of a mini-batch goes", xlabel="milliseconds")
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    said = "; ".join(
        f"{label}: " + ", ".join(f"{name} {value:.2f}" for name, value in parts.items() if value)
        for label, parts in spent.items()
    )
    picture(f"Bars: milliseconds of a mini-batch in each phase. {said}.")
    return spent


def compare(runs: dict[str, Run]) -> None:
    """Draws the training loss of several runs, over mini-batches and over seconds."""
    _, axes = plt.subplots(1, 2, figsize=(9, 3.2), sharey=True, layout="constrained")
    for (label, run), colour in zip(runs.items(), palette.series(len(runs)), strict=True):
        plots.losses(axes[0], run.events, "batches", colour, label)
        plots.losses(axes[1], run.events, "seconds", colour, label)
    axes[1].set_ylabel("")
    axes[1].legend()
    took = [f"{label}: {run.summary['seconds']:.1f} s" for label, run in runs.items()]
    picture(f"Training loss over mini-batches and over seconds. {'; '.join(took)}.")


BOXES = {"ps": palette.PS, "client": palette.INK, "data": palette.WAIT} | {
    f"worker {k}": palette.worker(k) for k in range(8)
}
ARROWS = {
    "weights": palette.WEIGHTS,
    "gradients": palette.GRADIENTS,
    "tokens": palette.TOKENS,
    "data": palette.DATA,
    "": palette.COMPUTE,
}


def diagram(
    boxes: dict[str, tuple[float, float, str]],
    arrows: list[tuple[str, str, str, str]] = (),
    size: tuple[float, float] = (8, 3),
    title: str = "",
) -> None:
    """Draws processes as boxes, and what they send each other as arrows.

    Args:
        boxes: text (one or more lines) -> x, y of the box's centre (one unit is about the width and
            the height of a box) and its kind, a key of `BOXES`.
        arrows: (from, to, label, kind) each; the kind is what travels, a key of `ARROWS`.
        size: width and height in inches.
        title: above the figure.

    Raises:
        ValueError: if a box would be cut off.
    """
    figure = plt.figure(figsize=size)
    above = 0.3 / size[1] if title else 0
    axes = figure.add_axes((0, 0, 1, 1 - above))
    places = np.array([place[:2] for place in boxes.values()], float)
    (left, low), (right, high) = places.min(0) - 0.6, places.max(0) + 0.6
    axes.set(xlim=(left, right), ylim=(low, high))
    axes.axis("off")
    axes.set_title(title, loc="center")
    # In points.
    at = {text: axes.transData.transform(place[:2]) * 72 / figure.dpi
          for text, place in boxes.items()}  # fmt: skip
    edges = {}
    for text, (x, y, kind) in boxes.items():
        box = {"boxstyle": "round,pad=0.6", "fc": BOXES[kind], "ec": "none"}
        colour = "black" if kind == "data" else "white"
        drawn = axes.text(x, y, text, ha="center", va="center", color=colour, zorder=3, bbox=box)
        edges[text] = drawn.get_bbox_patch()  # arrows start and end there
        drawn.update_bbox_position_size(figure.canvas.get_renderer())
        place = edges[text].get_window_extent()
        if np.any(place.min < 0) or np.any(place.max > figure.bbox.size):
            raise ValueError(f"the box {text!r} does not fit: shorten its lines, or enlarge size")
    ways = [(a, b) for a, b, *_ in arrows]
    for k, (a, b, label, kind) in enumerate(arrows):
        both = (b, a) in ways
        way = (at[b] - at[a]) / np.hypot(*(at[b] - at[a]))
        aside = np.array([way[1], -way[0]])  # to the right of the arrow
        if both and abs(way[0]) > 0.1:  # of the two, the first is above
            aside *= np.sign(aside[1]) * (-1 if (b, a) in ways[:k] else 1)
        shift = aside * (6 if both else 0)
        style = {"arrowstyle": "-|>", "color": ARROWS[kind], "lw": 2}
        style |= {"patchA": edges[a], "patchB": edges[b], "shrinkA": 4, "shrinkB": 4}
        points = {"xycoords": "figure points", "textcoords": "figure points"}
        axes.annotate("", at[b] + shift, at[a] + shift, arrowprops=style, zorder=4, **points)
        angle = np.degrees(np.arctan2(way[1], way[0]))
        if angle > 90.1:  # never upside down
            angle += 180
        elif angle < -90:
            angle -= 180
        lines = label.count("\n") + 1
        side = aside * (1 if both or way[0] < 0 or (way[0] == 0 and way[1] > 0) else -1)
        axes.annotate(
            label,
            (at[a] + at[b]) / 2 + shift + side * (3 + 6 * lines),
            ha="center",
            va="center",
            xycoords="figure points",
            rotation=angle,
            fontsize=9,
            zorder=5,
        )
    whole = {text: " / ".join(line.strip() for line in text.split("\n")) for text in boxes}
    first = [text.split(" / ")[0] for text in whole.values()]
    name = {
        text: line if first.count(line) == 1 else whole[text] for text, line in zip(boxes, first)
    }
    sent = [
        f"{name[a]} to {name[b]}: {label}" if label else f"{name[a]} to {name[b]}"
        for a, b, label, _ in arrows
    ]
    sent = " ".join("; ".join(sent).split())
    shown = f"Diagram. {title}. Boxes: {'; '.join(whole.values())}."
    picture(f"{shown} Arrows: {sent}." if sent else shown)
