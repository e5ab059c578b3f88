"""Makes PNGs that are small, and sharp on screens with twice the usual number of pixels."""

import io

from matplotlib.figure import Figure
from PIL import Image

SHARP = 2  # pixels of a picture for each pixel of the page
REDUCED = 0.75  # a page shows wide pictures at this part of their size: its column is narrower
LIMIT = 60_000  # bytes; a repository keeps every version of every picture
COLOURS = (64, 48, 32, 24)  # enough for smooth lines and letters


def drawn(figure: Figure, scale: float = SHARP) -> bytes:
    """Draws a figure with `scale` times its pixels, fast: the PNG is large."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=scale * figure.dpi, pil_kwargs={"compress_level": 0})
    return file.getvalue()


def small(png: bytes) -> bytes:
    """Returns a PNG with a palette: the most of `COLOURS` with which it stays below `LIMIT`."""
    whole = Image.open(io.BytesIO(png)).convert("RGB")
    # A ninth of the pixels finds the same colours, ten times as fast.
    sides = [max(1, side // 3) for side in whole.size]
    sample = whole.resize(sides, Image.Resampling.NEAREST)
    for colours in COLOURS:
        palette = sample.quantize(colours, Image.Quantize.MAXCOVERAGE, kmeans=1)
        few = whole.quantize(palette=palette, dither=Image.Dither.NONE)
        file = io.BytesIO()
        few.save(file, "PNG", optimize=True)
        if file.tell() <= LIMIT:
            break
    return file.getvalue()


def width(png: bytes, scale: float = SHARP) -> int:
    """How wide a page should show it, in the page's pixels."""
    return round(Image.open(io.BytesIO(png)).width / scale)
