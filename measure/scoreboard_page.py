"""What Scoreboard.md shows of the runs in `scoreboard.jsonl`: its tables, and its pictures.

bash measure/start.sh scoreboard_page    draws the pictures
"""

import functools
import itertools
import math
import re
import statistics
import sys
import textwrap
from collections import defaultdict

import matplotlib.pyplot as plt
import scoreboard
from cluster import CALL, transfer_seconds
from kept import read
from matplotlib.colors import to_rgb
from schemes import SCHEMES
from scoreboard import ALONE, CONTROL, LINKS, MS, PARAMETERS, TARGET, WINDOW, WORKERS
from watch import ROOT

from common.pictures import palette, png

GROUPS = {
    "asynchronous": ("HogWild", "Stale-Synchronous-Parallel", "DC-ASGD"),
    "asynchronous, with windows": ("AGN", "DOWNPOUR-Easy", "DOWNPOUR", "Dynamic-SGD",
                                   "Async-DiLoCo"),
    "elastic": ("AEASGD", "AEAMSGD"),
    "synchronous": ("Synchronous-SGD", "Synchronous-SGD-different-learning-rates", "Sign-SGD"),
    "synchronous, with windows": ("SAGN", "Local-SGD", "DiLoCo"),
}  # fmt: skip
SHORT = {"Synchronous-SGD-different-learning-rates": "Synchronous-SGD, own rates",
         "Stale-Synchronous-Parallel": "SSP"}  # fmt: skip


@functools.cache
def runs() -> dict[tuple[str, int, int], list[dict]]:
    """Scheme, workers, link -> the runs, by seed. One process stands under each link. A seed that
    not all settings have yet does not count."""
    found = defaultdict(list)
    for line in scoreboard.complete():
        for mbit in LINKS if line["scheme"] == ALONE else [line["mbit"]]:
            found[line["scheme"], line["workers"], mbit].append(line)
    return dict(found)


def values(setting: tuple[str, int, int], what: int) -> list[float]:
    """The seconds (0), updates (1) or megabytes (2) until the target, sorted; infinite where it was
    not reached."""
    return sorted(run["reached"][what] if run["reached"] else math.inf for run in runs()[setting])


def middle(setting: tuple[str, int, int], what: int = 0) -> float:
    """The median of `values`; infinite without runs."""
    return statistics.median(values(setting, what)) if setting in runs() else math.inf


def alone() -> float:
    """The median seconds of one process."""
    return middle((ALONE, 1, max(LINKS)))


def colours() -> dict[str, str]:
    """Of each group."""
    return dict(zip(GROUPS, map(palette.worker, (0, 1, 3, 2, 4))))


def group_of(scheme: str) -> str:
    return next(name for name, schemes in GROUPS.items() if scheme in schemes)


def waits(scheme: str) -> bool:
    return group_of(scheme).startswith("synchronous")


def best(workers: int, mbit: int, schemes) -> str:
    """The scheme with the smallest median time to the target."""
    return min(schemes, key=lambda scheme: middle((scheme, workers, mbit)))


def predicted(scheme: str, batches: float, workers: int, mbit: float, window: int) -> float:
    """Seconds that so many mini-batches take: the formula of Scoreboard.md.

    A mini-batch takes c, the parameters are on the link for s, and a worker computes T mini-batches
    between a pull and a push. If the link is free, that takes T c + m s, where m is what it waits
    for: 2 transfers; none in an elastic scheme, which computes meanwhile. Workers that wait for
    each other pull at the same moment, so the last one has w after n s: m = n + 1. And the link
    carries 2 n s in each cycle, so that is the least it takes.
    """
    c, s = MS / 1000, transfer(mbit, SCHEMES[scheme].bits)
    m = workers + 1 if waits(scheme) else 0 if group_of(scheme) == "elastic" else 2
    cycle = max(window * c + m * s, 2 * workers * s)
    return batches / (window * workers) * cycle


def transfer(mbit: float, bits: int = 32) -> float:
    """s: how many seconds the parameters are on the link, `bits` each, with all headers."""
    return transfer_seconds(PARAMETERS, mbit, bits) + CALL * 8e-6 / mbit


def spread(found: list[float], how: str = ".1f") -> str:
    """The median, and the range of the seeds."""
    low, high = found[0], found[-1]
    if math.isinf(statistics.median(found)):
        return "not reached"
    if len(found) == 1:
        return f"{low:{how}}"
    return f"{statistics.median(found):{how}} ({low:{how}} to {high:{how}})"


def table(kind: str) -> str:
    """A Markdown table for the pages: `time MBIT`, `bytes`, `equal MBIT`, `formula`, `best`,
    `tuned`, `late`, or `of SCHEME`. `seeds`: a sentence on how many runs there are."""
    what, _, rest = kind.partition(" ")
    if what == "of":
        return own_table(rest)
    tables = {"time": time_table, "bytes": bytes_table, "equal": equal_table,
              "formula": formula_table, "best": best_table,
              "tuned": tuned_table, "late": late_table, "seeds": seeds}  # fmt: skip
    return tables[what](*map(int, rest.split()))


def seeds() -> str:
    number = len(runs()[ALONE, 1, max(LINKS)])
    if number == 1:
        return "So far, there is one run of each setting, and no range."
    return f"All times are medians of {number} runs, with their range."


def rows(columns: list[str], lines: list[list[str]]) -> str:
    made = [columns, ["---"] * len(columns), *lines]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in made)


def ordered(mbit: int, what: int = 0, workers: int = max(WORKERS)) -> list[str]:
    return sorted(scoreboard.FOLDERS, key=lambda scheme: middle((scheme, workers, mbit), what))


def time_table(mbit: int) -> str:
    """Seconds to the target, by workers; the best scheme with eight workers first."""
    lines = [[ALONE, spread(values((ALONE, 1, mbit), 0)), "", "", ""]]
    for scheme in ordered(mbit):
        cells = [spread(values((scheme, n, mbit), 0)) for n in WORKERS]
        lines.append([f"[{scheme}]({scheme}/README.md)", *cells])
    return rows([f"{mbit:,} Mbit/s", "1 worker", *(f"{n} workers" for n in WORKERS[1:])], lines)


def bytes_table() -> str:
    """Megabytes until the target, with eight workers."""
    lines = [[scheme, *(spread(values((scheme, max(WORKERS), mbit), 2)) for mbit in LINKS)]
             for scheme in ordered(max(LINKS), 2)]  # fmt: skip
    return rows(["", *(f"{mbit:,} Mbit/s" for mbit in LINKS)], lines)


def equal_table(mbit: int) -> str:
    """The test loss after equal seconds and after equal bytes, with eight workers."""
    goal, lines = scoreboard.Goal(), []
    for scheme in [ALONE, *ordered(mbit)]:
        mine = runs()[scheme, 1 if scheme == ALONE else max(WORKERS), mbit]
        cells = []
        for what in ("after_seconds", "after_megabytes"):
            found = sorted(run[what] for run in mine if run[what] is not None)
            cells.append(spread(found, ".2f") if found else "")
        lines.append([scheme, *cells])
    return rows(["", f"after {goal.seconds:g} s", f"after {goal.megabytes:g} MB"], lines)


def formula_table() -> str:
    """What the formula says beside what was measured, with eight workers."""
    lines, n = [], max(WORKERS)
    for scheme in ("HogWild", "AGN", "AEASGD", "Synchronous-SGD", "Sign-SGD", "Local-SGD", "SAGN"):
        window = WINDOW if "window" in SCHEMES[scheme].defaults else 1
        for mbit in LINKS:
            updates = middle((scheme, n, mbit), 1)
            batches = updates * window * (n if waits(scheme) else 1)
            told = predicted(scheme, batches, n, mbit, window)
            took = middle((scheme, n, mbit))
            lines.append([scheme, f"{mbit:,}", f"{batches:,.0f}", f"{told:.1f}", f"{took:.1f}",
                          f"{alone() / took:.1f}"])  # fmt: skip
    columns = ["", "Mbit/s", "mini-batches, M", "formula, s", "measured, s",
               "times as fast as one process"]  # fmt: skip
    return rows(columns, lines)


def best_table() -> str:
    """The best scheme at each setting, of those with rounds and of those without."""
    lines = []
    for mbit in LINKS:
        for n in WORKERS[1:]:
            cells = []
            for together in (False, True):
                scheme = best(n, mbit, [each for each in scoreboard.FOLDERS
                                        if waits(each) == together])  # fmt: skip
                took = middle((scheme, n, mbit))
                cells.append(f"{scheme}, {took:.1f} s ({alone() / took:.1f} times as fast)")
            lines.append([f"{mbit:,}", str(n), *cells])
    return rows(
        ["Mbit/s", "workers", "without rounds", "in rounds: all wait for each other"], lines
    )


def own_table(scheme: str) -> str:
    """The median seconds of one scheme at each setting, beside the best one; for its README."""
    lines = []
    for mbit in reversed(LINKS):
        cells = [f"{middle((scheme, n, mbit)):.1f}" for n in WORKERS]
        order = ordered(mbit)
        lines.append([f"{mbit:,}", *cells, f"{order.index(scheme) + 1} of {len(order)}",
                      f"{order[0]}, {middle((order[0], max(WORKERS), mbit)):.1f}"])  # fmt: skip
    columns = ["Mbit/s", "1 worker", *(f"{n} workers" for n in WORKERS[1:]),
               "place with 8", "the best one with 8"]  # fmt: skip
    windows = f", T = {WINDOW}" if "window" in SCHEMES[scheme].defaults else ""
    return (f"Seconds to a test loss of {TARGET:g}{windows}; one process takes {alone():.1f} "
            f"([scoreboard](../Scoreboard.md)). {seeds()}\n\n{rows(columns, lines)}")  # fmt: skip


def tuned_table() -> str:
    """How long real runs take, relative to what the simulation says at their rate."""
    kept, lines = read(scoreboard.FOUND)["tuned"], []
    for mbit in reversed(LINKS):
        for n in WORKERS:
            ratios = []
            for scheme in scoreboard.FOLDERS:
                costs = dict(kept[f"{scheme}, {n} workers, {mbit} Mbit/s"])
                told = costs[runs()[scheme, n, mbit][0]["rate"]]
                ratios.append(middle((scheme, n, mbit)) / told)
            lines.append([f"{mbit:,}", str(n), spread(sorted(ratios), ".2f")])
    return rows(["Mbit/s", "workers", "real / simulated: the median scheme, and the range"], lines)


def late_table() -> str:
    """Simulated seconds to the target with equal workers, and with one that is late."""
    lines = []
    for scheme in sorted(
        read(scoreboard.FOUND)["late"], key=lambda scheme: statistics.median(late(scheme, 1))
    ):
        after = late(scheme, 1)
        if scheme == CONTROL:
            lines.append([f"control of Dynamic-SGD: {scheme}", "", spread(after), ""])
            continue
        before = late(scheme, 1, "equal")
        ratio = statistics.median(after) / statistics.median(before)
        lines.append([scheme, spread(before), spread(after), f"{ratio:.1f}"])
    return rows(["simulated seconds", "equal workers", "worker 7 is late", "ratio"], lines)


def main_picture() -> bytes:
    """Seconds to the target over workers, a panel for each link. The best scheme of each group has
    its name and the range of its seeds; the others are pale."""
    with plt.style.context(palette.STYLE):
        figure, panels = plt.subplots(1, 3, figsize=(10, 4.6), sharey=True, layout="constrained")
        for axes, mbit in zip(panels, reversed(LINKS)):
            one = values((ALONE, 1, mbit), 0)
            axes.axhspan(one[0], one[-1], color=palette.INK, alpha=0.15, lw=0)
            axes.axhline(alone(), color=palette.INK, ls="--", lw=1.2)
            axes.plot(WORKERS, [alone() / n for n in WORKERS], ":", color=palette.SECONDS)
            for name, schemes in GROUPS.items():
                chosen = best(max(WORKERS), mbit, schemes)
                for scheme in schemes:
                    curve(axes, scheme, mbit, colours()[name], scheme == chosen)
            axes.set(
                xscale="log",
                yscale="log",
                title=f"{mbit:,} Mbit/s",
                xlabel="workers",
                xticks=WORKERS,
                xticklabels=list(map(str, WORKERS)),
            )
            axes.minorticks_off()
        ticks = [10, 20, 50, 100, 200]
        panels[0].set_yticks(ticks, list(map(str, ticks)))
        panels[0].set(ylabel=f"seconds to a test loss of {TARGET:g}")
        panels[0].text(8, 1.1 * alone(), "one process", ha="right")
        panels[0].text(1.1, 0.3 * alone(), "n times as fast", color="#5b6470", rotation=-33)
        return finished(figure)


def chart() -> bytes:
    """A cell for each link and number of workers: the schemes to choose from, and how many times as
    fast as one process the best of them is. Its colour is that of the best scheme's group."""
    counts = WORKERS[1:]
    with plt.style.context(palette.STYLE):
        figure, axes = plt.subplots(figsize=(10, 4.4), layout="constrained")
        for (x, mbit), (y, n) in itertools.product(enumerate(reversed(LINKS)), enumerate(counts)):
            first, *others = choice(n, mbit) or [ALONE]
            colour = palette.INK if first == ALONE else colours()[group_of(first)]
            box = plt.Rectangle((x + 0.01, y + 0.02), 0.98, 0.96, color=(*to_rgb(colour), 0.18))
            axes.add_patch(box)
            axes.text(x + 0.5, y + 0.66, SHORT.get(first, first), ha="center", va="center",
                      weight="bold", fontsize=10)  # fmt: skip
            if first != ALONE:
                gain = alone() / middle((first, n, mbit))
                axes.text(x + 0.5, y + 0.43, f"{gain:.1f} times as fast as one process",
                          ha="center", va="center", fontsize=9)  # fmt: skip
            if others:
                names = " · ".join(SHORT.get(name, name) for name in others)
                axes.text(x + 0.5, y + 0.33, textwrap.fill(f"or {names}", 46), ha="center",
                          va="top", fontsize=7.5)  # fmt: skip
        axes.set(xlim=(0, len(LINKS)), ylim=(0, len(counts)))
        axes.set_xticks([x + 0.5 for x in range(len(LINKS))],
                        [f"s / c = {transfer_share(mbit):.1%}\n({mbit:,} Mbit/s)"
                         for mbit in reversed(LINKS)])  # fmt: skip
        axes.set_yticks([y + 0.5 for y in range(len(counts))], [f"{n} workers" for n in counts])
        axes.tick_params(length=0)
        axes.grid(False)
        axes.spines[:].set_visible(False)
        axes.set_title("s: to send the parameters once; c: to compute one mini-batch", fontsize=10)
        return finished(figure)


def transfer_share(mbit: int) -> float:
    """s / c: how long the parameters are on the link, relative to a mini-batch."""
    return transfer(mbit) / (MS / 1000)


def choice(workers: int, mbit: int) -> list[str]:
    """The best scheme at a setting, and those that are `as_good`; none that is slower than one
    process. Empty if all are."""
    first = values((best(workers, mbit, scoreboard.FOLDERS), workers, mbit), 0)
    return [scheme for scheme in ordered(mbit, workers=workers)
            if as_good(values((scheme, workers, mbit), 0), first)
            and middle((scheme, workers, mbit)) < alone()]  # fmt: skip


def as_good(one: list[float], other: list[float]) -> bool:
    """Whether the ranges of these sorted seconds meet: one seed's run of each is as fast as one of
    the other. Not if the median run of one never reached the target."""
    meet = one[0] <= other[-1] and other[0] <= one[-1]
    return meet and math.isfinite(statistics.median(one) + statistics.median(other))


def holds(claim: str) -> bool:
    """Whether the runs say what a page says. Beside its sentence, a page has a comment such as

        <!-- holds HogWild, SSP < One process / 5; 8 workers; 100, 1000 Mbit/s -->
        <!-- holds HogWild < Synchronous-SGD; one is late -->

    `<`: at each of these settings, the slowest run of each scheme on the left is faster than the
    fastest run of each on the right. `~`: each on the left is `as_good` as each on the right. If
    one is late, the runs are simulated: `scoreboard.LATE`.

    Raises:
        ValueError: if there is no such comparison, scheme or setting.
    """
    what, *where = map(str.strip, claim.split(";"))
    sides = sides_of(what)
    if len(sides) != 2:
        raise ValueError(f"{claim}: compares no two sides with < or ~")
    if where == ["one is late"]:
        return holds_at([[late(*each) for each in side] for side in sides], "<" in what)
    counts, links = where
    counts, links = numbers(counts, "workers", WORKERS), numbers(links, "Mbit/s", LINKS)
    return all(
        holds_at([[measured(*each, n, mbit) for each in side] for side in sides], "<" in what)
        for n, mbit in itertools.product(counts, links)
    )


def sides_of(what: str) -> list[list[tuple[str, float]]]:
    """The schemes on both sides of `A, B < C / 2`. A comma may belong to a short name."""
    names = (re.split(r",(?! own rates)", side) for side in re.split("[<~]", what))
    return [list(map(side_of, side)) for side in names]


def named(claim: str) -> set[str]:
    """The schemes of which it says something."""
    return {name for side in sides_of(claim.split(";")[0]) for name, _ in side}


def late(scheme: str, factor: float, which: str = "seconds") -> list[float]:
    """The simulated seconds of each seed if one worker is late, sorted; `equal`: if none is."""
    found = read(scoreboard.FOUND)["late"][scheme][which]
    return sorted((math.inf if each is None else each) / factor for each in found)


def holds_at(sides: list[list[list[float]]], is_faster: bool) -> bool:
    left, right = sides
    if is_faster:
        return max(found[-1] for found in left) < min(found[0] for found in right)
    return all(itertools.starmap(as_good, itertools.product(left, right)))


def numbers(text: str, unit: str, known: tuple[int, ...]) -> list[int]:
    """The numbers in `2, 4 workers`."""
    found = [int(word) for word in text.removesuffix(unit).split(",")]
    if not text.endswith(unit) or set(found) - set(known):
        raise ValueError(f"{text}: not some of {known} {unit}")
    return found


def side_of(text: str) -> tuple[str, float]:
    """A scheme, and what its time is divided by: `One process / 5`."""
    name, _, factor = map(str.strip, text.partition("/"))
    name = {short: long for long, short in SHORT.items()}.get(name, name)
    if name not in (ALONE, CONTROL, *scoreboard.FOLDERS):
        raise ValueError(f"{name}: not a scheme of the scoreboard")
    return name, float(factor or 1)


def measured(scheme: str, factor: float, workers: int, mbit: int) -> list[float]:
    setting = (scheme, 1 if scheme == ALONE else workers, mbit)
    return [seconds / factor for seconds in values(setting, 0)]


def curve(axes, scheme: str, mbit: int, colour: str, chosen: bool) -> None:
    there = [n for n in WORKERS if math.isfinite(middle((scheme, n, mbit)))]
    found = [middle((scheme, n, mbit)) for n in there]
    if not chosen:
        axes.plot(there, found, color=colour, lw=0.8, alpha=0.45)
        return
    ends = [values((scheme, n, mbit), 0) for n in there]
    errors = [[at - each[0] for at, each in zip(found, ends)],
              [each[-1] - at if math.isfinite(each[-1]) else 0
               for at, each in zip(found, ends)]]  # fmt: skip
    axes.errorbar(there, found, errors, fmt="o-", ms=4, lw=1.8, capsize=2, color=colour,
                  label=SHORT.get(scheme, scheme))  # fmt: skip
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, fontsize=8,
                handlelength=1.2, columnspacing=0.8)  # fmt: skip


def finished(figure) -> bytes:
    data = png.small(png.drawn(figure, png.SHARP * png.REDUCED))
    plt.close(figure)
    return data


def main() -> None:
    if len(sys.argv) > 1:
        sys.exit(__doc__)
    (ROOT / "docs/scoreboard.png").write_bytes(main_picture())
    (ROOT / "docs/which-one.png").write_bytes(chart())


if __name__ == "__main__":
    main()
