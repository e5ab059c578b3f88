"""The colours: one for each role, the same in every picture and diagram."""

from pathlib import Path

import matplotlib
import numpy as np

STYLE = Path(__file__).with_name("style.mplstyle")

PS = "#7b3fa0"  # the parameter server, and what it holds
INK = "#1b1f24"  # test accuracy; whatever belongs to no task
# What travels.
WEIGHTS, GRADIENTS, TOKENS, DATA = "#58b7e0", "#f2a33a", "#c2478f", "#aeb6c0"
# What a worker does: the colour of what it receives or sends, or its own.
PULL, COMPUTE, PUSH, WAIT = WEIGHTS, "#4a5360", GRADIENTS, "#dde1e6"
PHASES = {"pull": PULL, "compute": COMPUTE, "push": PUSH, "wait": WAIT}
SECONDS = "#9aa3ad"  # marks of the time
_WORKERS = ("#1f77b4", "#2a9d6f", "#c8553d", "#8c6bb1", "#b08900", "#3aa7b5", "#d6588f", "#6b7280")


def worker(index: int) -> str:
    return _WORKERS[index % len(_WORKERS)]


def series(count: int) -> list[str]:
    """Colours, dark to light, for what is no task and does not travel: the values of a flag, or
    the schemes that a picture compares."""
    shades = matplotlib.colormaps["viridis"](np.linspace(0.15, 0.78, count))
    return [matplotlib.colors.to_hex(shade) for shade in shades]
