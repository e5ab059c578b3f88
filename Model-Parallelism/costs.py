"""Measures what a split costs and what micro-batches recover. For `costs.sh` and the notebook.

It runs this folder with both splits, with one worker, and with more and more micro-batches. It
prints what travelled and how long the workers were idle, and draws `pipeline.png`.
"""

import collections
import json
import statistics
import subprocess
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import to_rgba
from matplotlib.patches import Patch

from common import datasets
from common.pictures import palette, png

HERE = Path(__file__).resolve().parent
LARGE = ("--hidden", 1000, "--batch_size", 1024)  # each part takes tens of milliseconds
MICRO_BATCHES, RUNS = (1, 2, 4, 8), 3
FIRST = 10  # steps left out: they are slower, and watch.py traces some of them
FORWARD = 0.5  # the opacity of a forward part in the picture
SCALAR = 8  # bytes: the most that a clock, a count or the loss takes


def travelled(folder: Path) -> tuple[dict[tuple[str, str], int], int]:
    """Bytes sent in one step of a run, as measured by the servers: (from, to) -> bytes, and the
    total of all scalars."""
    sent, scalars = collections.Counter(), 0
    for source, target, size in json.loads((folder / "transfers.json").read_text()):
        if size > SCALAR:
            sent[source, target] += size
        else:
            scalars += size
    return dict(sent), scalars


def on_paper(flags: dict) -> dict[tuple[str, str], int]:
    """The same, calculated from the layer sizes: 4 bytes per number, 8 per label."""
    example, classes, _ = datasets.KNOWN[flags["data"]]
    n, ps, batch, h = (flags[name] for name in ("workers", "ps", "batch_size", "hidden"))
    widths = [np.prod(example), h, h, h, classes]
    sent = collections.Counter()

    def both_ways(a: str, b: str, numbers: int) -> None:
        sent[a, b] += 4 * int(numbers)
        sent[b, a] += 4 * int(numbers)

    for k in range(n):
        if flags["split"] == "layers":
            layers = np.array_split(range(4), n)[k]
            params = sum((widths[i] + 1) * widths[i + 1] for i in layers)
            reads, labels_at = k == 0, n - 1
            if k < n - 1:  # activations; back: their gradients
                both_ways(f"worker {k}", f"worker {k + 1}", batch * widths[layers[-1] + 1])
        else:
            units = h * (k + 1) // n - h * k // n
            params = sum((widths[i] + 1) * units + units * widths[i + 2] for i in (0, 2))
            params += (h + classes) * (k == 0)
            reads, labels_at = True, 0
            for j in range(k):  # each other worker's part of the sum; back: its gradient
                both_ways(f"worker {j}", f"worker {k}", 2 * batch * h)
            if k:  # its part of the output; back: its gradient
                both_ways("worker 0", f"worker {k}", batch * classes)
        both_ways(f"ps {k % ps}", f"worker {k}", params)  # parameters; back: their gradients
        sent["chief 0", f"worker {k}"] += 4 * batch * int(widths[0]) * reads
        sent["chief 0", f"worker {k}"] += 8 * batch * (k == labels_at)
    return {ends: size for ends, size in sent.items() if size}


def steps(folder: Path) -> list[list]:
    """The clocks of each step: [`forward` or `backward`, worker, micro-batch, begin, end] of each
    part; without the first `FIRST` steps."""
    lines = (folder / "clocks.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines[FIRST:]]


def span(step: list) -> float:
    """Seconds from the first part of a step to its last."""
    return max(part[4] for part in step) - min(part[3] for part in step)


def busy(step: list) -> float:
    """Seconds that a worker spends computing in a step, averaged over the workers."""
    return sum(end - begin for *_, begin, end in step) / len({part[1] for part in step})


def bubble(step: list) -> float:
    """The share of `span` in which workers are idle, averaged over the workers."""
    return 1 - busy(step) / span(step)


def ideal(m: int, p: int, overhead: float = 0) -> list[list]:
    """GPipe's schedule in the form of `steps`. One worker alone takes 1 for the whole batch, of
    which a third is forward; each part of a stage takes its share of that, and `overhead`."""
    forward, backward = (share / (m * p) + overhead for share in (1 / 3, 2 / 3))
    turn = (m + p - 1) * forward  # the last worker has all micro-batches behind it
    step = [["forward", s, i, (s + i) * forward, (s + i + 1) * forward]
            for s in range(p) for i in range(m)]  # fmt: skip
    for s in range(p):
        for i in range(m):
            begin = turn + (p - 1 - s + m - 1 - i) * backward
            step.append(["backward", s, i, begin, begin + backward])
    return step


def draw(axes, step: list, title: str, length: float, scale: float = 1e3) -> None:
    """Draws one step, a lane per worker, on an axis of `length` seconds (`scale`: marks of the axis
    in a second). Each part shows its micro-batch, if there is room."""
    began = min(part[3] for part in step)
    workers = sorted({part[1] for part in step})
    axes.barh(workers, scale * span(step), height=0.7, color=palette.WAIT)
    lanes, left = [part[1] for part in step], [scale * (part[3] - began) for part in step]
    colours = [to_rgba(palette.COMPUTE, FORWARD if what == "forward" else 1) for what, *_ in step]
    axes.barh(lanes, [scale * (end - begin) for *_, begin, end in step], left=left, height=0.7,
              ec="white", lw=0.6, color=colours)  # fmt: skip
    room = 0.028 * length * 9 / axes.figure.get_figwidth()  # for two letters
    for what, k, i, begin, end in step:
        if end - begin > room:
            axes.text(
                scale * ((begin + end) / 2 - began),
                k,
                f"{what[0].upper()}{i}",
                ha="center",
                va="center",
                fontsize=8,
                color=palette.INK if what == "forward" else "white",
            )
    axes.set(title=title, xlim=(0, scale * length))
    axes.set_yticks(workers, [f"worker {k}" for k in workers])
    for k, label in zip(workers, axes.get_yticklabels()):
        label.set(color=palette.worker(k), fontweight="bold")
    axes.invert_yaxis()
    axes.grid(False, axis="y")


def typical(folders: list[Path]) -> list:
    """The step of these runs that is nearest to the medians of idle share and length."""
    found = [step for folder in folders for step in steps(folder)]
    middle = {f: statistics.median(map(f, found)) for f in (bubble, span)}
    return min(found, key=lambda step: sum(abs(f(step) / middle[f] - 1) for f in middle))


def pipelines(folders: dict[int, list[Path]]) -> plt.Figure:
    """A typical step for each number of micro-batches, all on the same scale."""
    chosen = {m: typical(runs) for m, runs in folders.items()}
    figure, panels = plt.subplots(len(chosen), 1, figsize=(9, 1.3 * len(chosen) + 0.5),
                                  layout="constrained", sharex=True)  # fmt: skip
    for axes, (m, step) in zip(np.atleast_1d(panels), chosen.items()):
        title = f"m = {m}: idle for {bubble(step):.0%} of this step"
        draw(axes, step, title, 1.02 * max(map(span, chosen.values())))
    axes.set_xlabel("milliseconds")
    key = {"F: compute forward": (palette.COMPUTE, FORWARD),
           "B: compute backward": (palette.COMPUTE, 1), "idle": (palette.WAIT, 1)}  # fmt: skip
    patches = [Patch(color=c, alpha=alpha, label=name) for name, (c, alpha) in key.items()]
    figure.legend(handles=patches, loc="outside lower right", ncols=3)
    return figure


def run(where: Path, *flags) -> Path:
    """Runs this example to completion; returns its results folder, `where`."""
    command = ["bash", HERE / "run.sh", "--plain", "--results", where, *flags]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return where


def flags_of(folder: Path) -> dict:
    return json.loads((folder / "summary.json").read_text())["flags"]


def bytes_table(runs: dict[str, Path]) -> str:
    """Bytes from task to task in one step, measured and on paper; a column for each run."""
    columns = [(*travelled(folder), on_paper(flags_of(folder))) for folder in runs.values()]
    pairs = sorted({ends for sent, _, paper in columns for ends in (*sent, *paper)})

    def line(text: str, cells) -> str:
        return f"{text:22}" + " | ".join(f"{a:>11} {b:>11}" for a, b in cells)

    def total(text: str, first: str, second: str) -> str:
        chosen = [ends for ends in pairs if {first, second} == {end.split()[0] for end in ends}]
        return row(text, chosen)

    def row(text: str, chosen: list) -> str:
        sums = [[sum(part.get(ends, 0) for ends in chosen) for part in (sent, paper)]
                for sent, _, paper in columns]  # fmt: skip
        return line(text, [[f"{size:,}" if size else "" for size in both] for both in sums])

    return "\n".join([
        line("bytes in one step", [(name, "") for name in runs]),
        line("", [("measured", "on paper")] * len(runs)),
        *(row(f"{a} -> {b}", [(a, b)]) for a, b in pairs),
        total("all to and from ps", "ps", "worker"),
        total("all between workers", "worker", "worker"),
        line("clocks, counts, loss", [(scalars, "") for _, scalars, _ in columns]),
    ])  # fmt: skip


def pipeline_table(folders: dict[int, list[Path]]) -> str:
    """Times for each number of micro-batches, beside GPipe's formula: the median of a run's steps;
    for several runs, the median run, with the lowest and highest in brackets."""

    def cell(runs: list[Path], of, form: str) -> str:
        values = sorted(statistics.median(map(of, steps(folder))) for folder in runs)
        shown = [form.format(v) for v in (statistics.median(values), values[0], values[-1])]
        return shown[0] if len(values) == 1 else "{} ({} - {})".format(*shown)

    lines = [f"{'micro-batches':>13} {'forward + backward, ms':>24} {'idle share':>18} "
             f"{'(p - 1) / (m + p - 1)':>23} {'computing, ms per worker':>24}"]  # fmt: skip
    for m, runs in folders.items():
        p = flags_of(runs[0])["workers"]
        lines.append(
            f"{m:13} {cell(runs, lambda step: 1e3 * span(step), '{:.0f}'):>24} "
            f"{cell(runs, bubble, '{:.0%}'):>18} {(p - 1) / (m + p - 1):23.0%} "
            f"{cell(runs, lambda step: 1e3 * busy(step), '{:.0f}'):>24}"
        )
    return "\n".join(lines)


def main() -> None:
    print("run.sh", *LARGE, "and the flags in the tables:\n")
    with tempfile.TemporaryDirectory() as scratch, plt.style.context(palette.STYLE):
        where = Path(scratch)
        short, long = ("--steps", FIRST + 2), ("--steps", FIRST + 20)
        folders: dict[int, list[Path]] = {m: [] for m in MICRO_BATCHES}
        for i in range(RUNS):
            for m in MICRO_BATCHES:
                found = run(where / f"{m}-{i}", *LARGE, *long, "--micro_batches", m)
                folders[m].append(found)
        units = run(where / "units", *LARGE, *short, "--split", "units")
        alone = run(where / "alone", *LARGE, *short, "--workers", 1, "--ps", 1)
        runs = {"--split layers": folders[1][0], "--split units": units, "--workers 1": alone}
        print(bytes_table(runs), pipeline_table(folders), sep="\n\n")
        (HERE / "pipeline.png").write_bytes(png.small(png.drawn(pipelines(folders))))


if __name__ == "__main__":
    main()
