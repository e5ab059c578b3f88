"""Draws the same straggler in two simulated schemes: docs/who-waits.svg, a picture that moves, and
the picture that others show beside a link to the site.

    python build/moving.py

A viewer that shows no animation, or whose user wants none, shows the first seconds.
"""

import html
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "Many-Workers")]

import matplotlib.pyplot as plt  # noqa: E402
import simulate  # noqa: E402
from toys import Unwatched, Written  # noqa: E402

from common.pictures import palette, png  # noqa: E402
from common.record import trace  # noqa: E402

WORKERS, SLOW = 3, {2: 0.2}  # worker 2 takes three times as long
SECONDS, SHOWN, PACE = 12.0, 2.6, 0.45  # simulated; seen at once; simulated seconds in a second
WIDTH, LEFT, LANE, GAP = 760, 92, 22, 30
SCALE = (WIDTH - LEFT) / SHOWN  # pixels in a second
PANELS = {"HogWild": "Asynchronous (HogWild!): nobody waits",
          "Synchronous-SGD": "Synchronous (Synchronous-SGD): all wait for worker 2"}  # fmt: skip


def simulated(scheme: str) -> Written:
    options = simulate.options(scheme=scheme, workers=WORKERS, model="none", parameters=25_000,
                               compute=0.1, spread=0.06, delay=SLOW, link_mbit=30, steps=400,
                               seed=1)  # fmt: skip
    written = Written()
    simulate.simulate(options, make_cluster=Unwatched, report=written)
    return written


def bar(start: float, end: float, row: float, fill: str) -> str:
    start, end = max(0.0, start), min(SECONDS, end)
    if end <= start:
        return ""
    return (f'<rect x="{start * SCALE:.1f}" y="{row:g}" width="{(end - start) * SCALE:.1f}" '
            f'height="{LANE - 6}" fill="{fill}"/>')  # fmt: skip


def phases(mine: list[dict]):
    """Of a worker: each phase with its beginning and end."""
    before = 0.0
    for step in mine:
        ends = [began := trace.began(step), began + step["pull"]]
        ends += [ends[1] + step["compute"], step["time"]]
        yield from zip(("wait", "pull", "compute", "push"), [before, *ends], ends)
        before = step["time"]


def panel(scheme: str, top: float) -> tuple[str, str]:
    """What moves, and what stands still, from `top` on."""
    run, moving, still = simulated(scheme), [], []
    still.append(f'<text class="title" x="0" y="{top + 12}">{html.escape(PANELS[scheme])}</text>')
    for k, mine in enumerate(run.events()):
        row = top + 20 + k * LANE
        still.append(f'<text x="0" y="{row + 13}">worker {k}</text>')
        moving += [
            bar(start, end, row, palette.PHASES[phase]) for phase, start, end in phases(mine)
        ]
    row = top + 20 + WORKERS * LANE
    still.append(f'<text x="0" y="{row + 13}">updates</text>')
    moving += [bar(at, at + 0.012, row, palette.PS) for at in run.updates]
    return "".join(moving), "".join(still)


def picture() -> str:
    height = LANE * (WORKERS + 1) + 20 + GAP
    moving, still = zip(*(panel(scheme, k * height) for k, scheme in enumerate(PANELS)))
    whole, far = len(PANELS) * height, (SECONDS - SHOWN) * SCALE
    keys, said = "", ("waits", "pulls the parameters", "computes a gradient", "pushes it")
    for phase, text, x in zip(("wait", "pull", "compute", "push"), said, (0, 75, 245, 410)):
        box = f'x="{LEFT + x}" y="{whole - 8}" width="11" height="11"'
        keys += f'<rect {box} fill="{palette.PHASES[phase]}"/>'
        keys += f'<text x="{LEFT + x + 16}" y="{whole + 2}">{text}</text>'
    about = ("Two schemes with three workers, of which worker 2 takes three times as long. In the "
             "asynchronous one the others go on; in the synchronous one they wait for it in each "
             "round.")  # fmt: skip
    box = f'width="{WIDTH + 16}" height="{whole + 20}"'
    lanes = f'x="{LEFT}" width="{WIDTH - LEFT}" height="{whole - 12}"'
    return f"""<svg xmlns="http://www.w3.org/2000/svg" {box}
 viewBox="-8 -8 {WIDTH + 16} {whole + 20}" role="img" aria-label="{about}">
<style>
text {{ font: 13px system-ui, "Liberation Sans", sans-serif; fill: {palette.INK}; }}
.title {{ font-weight: 600; }}
.moving {{ animation: pass {(SECONDS - SHOWN) / PACE:.1f}s linear infinite; }}
@keyframes pass {{ to {{ transform: translateX(-{far:.1f}px); }} }}
@media (prefers-reduced-motion: reduce) {{ .moving {{ animation: none; }} }}
</style>
<rect x="-8" y="-8" {box} rx="8" fill="#ffffff"/>
<svg {lanes}><g class="moving">{"".join(moving)}</g></svg>
{"".join(still)}{keys}
</svg>
"""


def preview() -> bytes:
    """The collection's name, and below it the first seconds of both schemes."""
    figure, panels = plt.subplots(2, 1, figsize=(12, 6), gridspec_kw={"hspace": 0.5})
    figure.subplots_adjust(left=0.09, right=0.97, top=0.72, bottom=0.05)
    figure.text(0.035, 0.88, "Distributed TensorFlow, by example", fontsize=34, weight="bold")
    figure.text(0.035, 0.81, "Every scheme from HogWild! to DiLoCo: read it, run it, play with it",
                fontsize=19)  # fmt: skip
    for axes, (scheme, title) in zip(panels, PANELS.items()):
        for k, mine in enumerate(simulated(scheme).events()):
            for phase, start, end in phases(mine):
                axes.barh(-k, end - start, 0.75, start, color=palette.PHASES[phase])
        axes.set(xlim=(0, SHOWN), ylim=(0.5 - WORKERS, 0.5), yticks=[-k for k in range(WORKERS)],
                 yticklabels=[f"worker {k}" for k in range(WORKERS)], xticks=[])  # fmt: skip
        axes.set_title(title, loc="left", fontsize=17)
        axes.tick_params(length=0, labelsize=14)
        axes.spines[:].set_visible(False)
    found = png.small(png.drawn(figure, 1))
    plt.close(figure)
    return found


def main() -> None:
    if len(sys.argv) > 1:
        sys.exit(__doc__)
    (ROOT / "docs/who-waits.svg").write_text(picture(), encoding="utf-8")
    (ROOT / "build/web/static/preview.png").write_bytes(preview())


if __name__ == "__main__":
    main()
