"""Draws docs/overview: for each way to distribute training, who holds what and who sends what to
whom. The front page and the tutorial begin with these pictures.

    python build/overview.py
"""

import html
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from common.pictures import palette  # noqa: E402

FOLDER = ROOT / "docs" / "overview"
WIDTH, HEIGHT = 250, 180
W, G = palette.WEIGHTS, palette.GRADIENTS
COLUMNS = 42, 125, 208  # of the workers
TOP, BOTTOM = 20, 112  # of the ps's box and of the workers'


def box(x: float, y: float, lines: list[str], fill: str, width: float = 72) -> str:
    """With its centre above `x` and its upper edge at `y`; the first line is bold."""
    height = 10 + 14 * len(lines)
    found = (f'<rect x="{x - width / 2:g}" y="{y}" width="{width:g}" height="{height}" rx="6" '
             f'fill="{fill}"/>')  # fmt: skip
    for k, line in enumerate(lines):
        kind = ' class="who"' if k == 0 else ""
        found += f'<text{kind} x="{x:g}" y="{y + 17 + 14 * k}">{html.escape(line)}</text>'
    return found


def arrow(x: float, y: float, to_x: float, to_y: float, colour: str) -> str:
    way = f'd="M{x:g} {y:g} L{to_x:g} {to_y:g}"'
    return f'<path class="way" {way} stroke="{colour}" marker-end="url(#{colour[1:]})"/>'


def label(x: float, y: float, text: str) -> str:
    return f'<text class="sent" x="{x:g}" y="{y:g}">{html.escape(text)}</text>'


def workers(line: str) -> str:
    return "".join(box(x, BOTTOM, [f"worker {k}", line], palette.worker(k))
                   for k, x in enumerate(COLUMNS))  # fmt: skip


def server(line: str) -> str:
    return box(125, TOP, ["ps", line], palette.PS, 150)


def push(k: int, aside: float = 0) -> str:
    x = COLUMNS[k]
    return arrow(x + aside, BOTTOM - 3, 125 + (x - 125) * 0.6 + aside, TOP + 42, G)


def pull(k: int, aside: float = 0) -> str:
    x = COLUMNS[k]
    return arrow(125 + (x - 125) * 0.6 + aside, TOP + 40, x + aside, BOTTOM - 5, W)


def both(k: int) -> str:
    return push(k, -6) + pull(k, 6)


def one_process() -> str:
    return box(125, 62, ["one process", "w, all examples"], palette.COMPUTE, 150)


def asynchronous() -> str:
    return (server("w̃") + workers("copy of w") + push(0) + pull(2)
            + label(40, 84, "g") + label(125, 90, "computes") + label(212, 84, "w̃"))  # fmt: skip


def synchronous() -> str:
    return (server("w̃, waits for all g") + workers("copy of w") + push(0) + push(1) + push(2)
            + label(40, 84, "g") + label(115, 90, "g") + label(212, 84, "g"))  # fmt: skip


def local_steps() -> str:
    return (server("w̃") + workers("own w") + both(0) + both(1) + both(2)
            + label(125, 168, "only after T steps of their own"))  # fmt: skip


def all_reduce() -> str:
    places = (60, 14), (190, 14), (190, 96), (60, 96)
    found = "".join(box(x, y, [f"worker {k}", "w"], palette.worker(k), 84)
                    for k, (x, y) in enumerate(places))  # fmt: skip
    found += arrow(103, 32, 145, 32, G) + arrow(190, 54, 190, 93, G)
    found += arrow(147, 115, 105, 115, G) + arrow(60, 94, 60, 55, G)
    return found + label(125, 78, "parts of g") + label(125, 168, "no ps: everybody sums a part")


def model_parallel() -> str:
    found = box(62, 52, ["worker 0", "first layers"], palette.worker(0), 92)
    found += box(188, 52, ["worker 1", "last layers"], palette.worker(1), 92)
    found += arrow(109, 65, 139, 65, palette.DATA) + arrow(141, 79, 111, 79, G)
    return found + label(125, 42, "activations") + label(125, 114, "and their gradients back")


# File -> title, the page that shows it, who holds what and who sends what, and how it is drawn.
PICTURES = {
    "one-process": ("One process", "Non-Distributed-Setup",
                    "It holds the parameters w and all examples. Nothing is sent.", one_process),
    "asynchronous": ("Asynchronous", "HogWild",
                     "The ps holds the parameters. Each worker pulls them, and pushes its gradient "
                     "when it is ready: nobody waits.", asynchronous),
    "synchronous": ("Synchronous", "Synchronous-SGD",
                    "The ps waits for a gradient from every worker, and applies their mean.",
                    synchronous),
    "local-steps": ("Local steps", "Local-SGD",
                    "Each worker trains parameters of its own, and exchanges them, or how far they "
                    "moved, only every T steps.", local_steps),
    "all-reduce": ("All-reduce", "Basics-Tutorial/All-Reduce.ipynb",
                   "No ps: every worker holds all parameters. They sum their gradients around a "
                   "ring.", all_reduce),
    "model-parallel": ("Model parallel", "Model-Parallelism",
                       "Each worker holds some of the layers. Activations travel, and their "
                       "gradients back.", model_parallel),
}  # fmt: skip


def picture(name: str) -> str:
    title, _, about, draw = PICTURES[name]
    heads = "".join(
        f'<marker id="{colour[1:]}" viewBox="0 0 8 8" refX="5" refY="4" markerWidth="4.5" '
        f'markerHeight="4.5" orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="{colour}"/></marker>'
        for colour in (W, G, palette.DATA)
    )
    return f"""<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}"
 viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(f"{title}. {about}")}">
<style>
text {{ font: 12px system-ui, "Liberation Sans", sans-serif; fill: #ffffff; text-anchor: middle; }}
.who {{ font-weight: 600; }}
.sent {{ fill: {palette.INK}; }}
.way {{ fill: none; stroke-width: 2.2; }}
</style>
<defs>{heads}</defs>
<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#ffffff"/>
{draw()}
</svg>
"""


def table(root: str) -> str:
    """The pictures in two rows, each with a link; `root`: the way to the collection's root."""
    root = "" if root == "." else f"{root}/"
    lines, names = [], list(PICTURES)
    for row in (names[:3], names[3:]):
        cells = []
        for name in row:
            title, where, about, _ = PICTURES[name]
            cells.append(f"[![{title}. {about}]({root}docs/overview/{name}.svg)]({root}{where})<br>"
                         f"[{title}]({root}{where})")  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([lines[0], "|" + ":---:|" * 3, *lines[1:]])


def main() -> None:
    if len(sys.argv) > 1:
        sys.exit(__doc__)
    FOLDER.mkdir(exist_ok=True)
    for name in PICTURES:
        (FOLDER / f"{name}.svg").write_text(picture(name), encoding="utf-8")


if __name__ == "__main__":
    main()
