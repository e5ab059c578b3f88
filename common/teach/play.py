"""Controls to play with: sliders over a function that draws. Without a kernel, a set of frames."""

import asyncio
import base64
import gc
import html
import inspect
import io
from collections.abc import Callable, Iterable

import ipywidgets
import matplotlib.pyplot as plt
import numpy as np
from IPython.display import display
from PIL import Image

from common.pictures import png
from common.teach.draw import finished

SIZE = (4.6, 2.9)  # inches
COLUMNS = 2  # frames side by side are as wide as a page
PAUSE = 0.02  # seconds without a move, after which the picture is drawn
OLD = "being-drawn"  # the class of a picture that no longer shows what the sliders say
STYLE = f".{OLD} img {{ opacity: 0.3 }} .says {{ min-height: 1.5em; margin: 0 }}"
SAYS = f"<style>{STYLE}</style><p role='status' class='says'>%s</p>"


def play(
    draw: Callable,
    alt: str,
    size: tuple[float, float] = SIZE,
    still: Callable | None = None,
    units: dict[str, str] | None = None,
    steady: bool = False,
    **choices: Iterable,
) -> None:
    """Shows a slider for each choice, and the picture for the values that they stand at. While a
    slider is dragged, only its last place is drawn; until then, the old picture is pale.

    Where no kernel runs (on GitHub, on the site), the frames for all values of the first choice, or
    six of them, take the sliders' place; the other choices keep their defaults.

    Args:
        draw: `draw(axes, name=value, ...)` draws one picture, fast. The defaults of its parameters
            are where the sliders start.
        alt: describes all frames. The picture of the sliders is described by their values and its
            titles.
        size: of one picture, in inches.
        still: draws the frames, of the usual size, in place of `draw`: six of its large pictures
            would be too many.
        units: of choices whose name does not say it.
        steady: all pictures of the sliders have the first one's layout. Laying out takes as long as
            drawing; leave it out only if labels and ticks always have about the same size.
        choices: the values of each parameter of `draw`, in order.
    """
    choices = {name: list(values) for name, values in choices.items()}
    start = {name: inspect.signature(draw).parameters[name].default for name in choices}
    units, places = units or {}, []  # of axes and titles, in a steady layout

    def told(name: str, value) -> str:
        return f"{shown(value)} {units.get(name, '')}".strip()

    def drawn(**values) -> str:
        figure, axes = plt.subplots(figsize=size, layout="constrained")
        draw(axes, **values)
        texts = [f"{label(name)} {told(name, value)}" for name, value in values.items()]
        about = ". ".join([", ".join(texts), *titles(figure)])
        if steady and places:
            figure.set_layout_engine(None)  # "none" would draw twice
            for part, place in zip([*figure.axes, *figure.texts], places, strict=True):
                part.set_position(place)
        file = io.BytesIO()
        figure.savefig(file, format="svg")  # takes less time than a PNG, and is sharp at any size
        places[:] = [part.get_position() for part in [*figure.axes, *figure.texts]]
        plt.close(figure)
        source = base64.b64encode(file.getvalue()).decode()
        return (
            f'<img src="data:image/svg+xml;base64,{source}" alt="{html.escape(about)}" '
            f'width="{size[0] * figure.dpi:.0f}" style="max-width: 100%">'
        )

    def frame(**values) -> bytes:
        figure, axes = plt.subplots(figsize=SIZE if still else size, layout="constrained")
        (still or draw)(axes, **values)
        return finished(figure, png.SHARP * png.REDUCED)

    first, values = next(iter(choices.items()))
    picked = [values[i] for i in np.unique(np.linspace(0, len(values) - 1, 6).round().astype(int))]
    frames = [frame(**start | {first: value}) for value in picked]
    whole = png.small(montage(frames))
    labels = [f"{label(first)} {told(first, value)}" for value in picked]
    note = {"columns": COLUMNS, "labels": labels}
    about = {"alt": alt, "width": png.width(whole), "frames": note}

    sliders = {
        name: ipywidgets.SelectionSlider(
            options=[(told(name, value), value) for value in values],
            value=start[name],
            description=label(name),
            style={"description_width": "initial"},
            layout={"width": "28em"},
        )
        for name, values in choices.items()
    }
    layout = {"max_width": "100%", "align_self": "flex-start"}  # not stretched to the page's width
    picture, says = ipywidgets.HTML(drawn(**start), layout=layout), ipywidgets.HTML(SAYS % "")
    later: asyncio.TimerHandle | None = None

    def move(_):
        nonlocal later
        says.value = SAYS % "drawing ..."
        picture.add_class(OLD)
        if later:
            later.cancel()
        later = asyncio.get_running_loop().call_later(PAUSE, answer)

    def answer():
        gc.disable()  # where TensorFlow is loaded, a collection takes 0.1 s: it can wait
        try:
            picture.value = drawn(**{name: slider.value for name, slider in sliders.items()})
        finally:
            gc.enable()
        picture.remove_class(OLD)
        says.value = SAYS % ""

    for slider in sliders.values():
        slider.observe(move, "value")
    live = ipywidgets.VBox([*sliders.values(), says, picture])._repr_mimebundle_()
    display(live | {"image/png": whole, "text/plain": alt}, metadata={"image/png": about}, raw=True)


def label(name: str) -> str:
    return name.replace("_", " ")


def titles(figure) -> list[str]:
    """What stands above the figure and its axes."""
    found = [figure.get_suptitle(), *(axes.get_title() for axes in figure.axes)]
    return [" ".join(text.split()) for text in found if text]


def shown(value) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def montage(frames: list[bytes]) -> bytes:
    """Puts PNGs of one size into a grid, row by row."""
    each = [Image.open(io.BytesIO(frame)) for frame in frames]
    wide, high = each[0].size
    grid = Image.new("RGB", (COLUMNS * wide, -(-len(each) // COLUMNS) * high), "white")
    for k, one in enumerate(each):
        grid.paste(one, (k % COLUMNS * wide, k // COLUMNS * high))
    file = io.BytesIO()
    grid.save(file, "PNG", compress_level=1)
    return file.getvalue()
