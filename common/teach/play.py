"""Controls to play with: sliders over a function that draws. Without a kernel, a set of frames."""

import inspect
import io
from collections.abc import Callable, Iterable

import ipywidgets
import matplotlib.pyplot as plt
import numpy as np
from IPython.display import display
from matplotlib import image

from common.teach.draw import png

SIZE = (4.6, 2.9)  # inches; two frames side by side are as wide as a page


def play(draw: Callable, alt: str, size: tuple[float, float] = SIZE, **choices: Iterable) -> None:
    """Shows a slider for each choice, and the picture for the values that they stand at.

    Where no kernel runs (on GitHub, on the site), the frames for all values of the first choice, or
    six of them, take the sliders' place; the other choices keep their defaults.

    Args:
        draw: `draw(axes, name=value, ...)` draws one picture, fast. The defaults of its parameters
            are where the sliders start.
        alt: describes all frames.
        size: of one picture, in inches.
        choices: the values of each parameter of `draw`, in order.
    """
    choices = {name: list(values) for name, values in choices.items()}
    start = {name: inspect.signature(draw).parameters[name].default for name in choices}

    def drawn(**values) -> bytes:
        figure, axes = plt.subplots(figsize=size, layout="constrained")
        draw(axes, **values)
        return png(figure)

    first, values = next(iter(choices.items()))
    picked = [values[i] for i in np.unique(np.linspace(0, len(values) - 1, 6).round().astype(int))]
    frames = [drawn(**start | {first: value}) for value in picked]
    columns = 1 if size[0] > 6 else 2
    note = {"columns": columns, "labels": [f"{label(first)} {shown(value)}" for value in picked]}
    still = {"image/png": montage(frames, columns), "text/plain": alt}

    sliders = {
        name: ipywidgets.SelectionSlider(
            options=[(shown(value), value) for value in values],
            value=start[name],
            description=label(name),
            style={"description_width": "initial"},
            layout={"width": "28em"},
        )
        for name, values in choices.items()
    }
    layout = {"max_width": "100%", "align_self": "flex-start"}  # not stretched to the page's width
    picture = ipywidgets.Image(value=drawn(**start), format="png", layout=layout)

    def move(_):
        picture.value = drawn(**{name: slider.value for name, slider in sliders.items()})

    for slider in sliders.values():
        slider.observe(move, "value")
    live = ipywidgets.VBox([*sliders.values(), picture])._repr_mimebundle_()
    display(live | still, metadata={"image/png": {"alt": alt, "frames": note}}, raw=True)


def label(name: str) -> str:
    return name.replace("_", " ")


def shown(value) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def montage(frames: list[bytes], columns: int) -> bytes:
    """Puts PNGs of one size into a grid, row by row."""
    grid = [image.imread(io.BytesIO(frame)) for frame in frames]
    grid += [np.ones_like(grid[0])] * (-len(grid) % columns)
    rows = [np.hstack(grid[i : i + columns]) for i in range(0, len(grid), columns)]
    file = io.BytesIO()
    image.imsave(file, np.vstack(rows), format="png")
    return file.getvalue()
