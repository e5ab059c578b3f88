"""The small GPT over a link of 10 Mbit/s: which scheme learns it fastest?

    bash measure/start.sh slow_link tune [SCHEME...]    every rate of the grids: 1 hour
    bash measure/start.sh slow_link race [SCHEME...]    two minutes of each, three seeds: 70 minutes
    bash measure/start.sh slow_link target              time to a fixed loss, also with a straggler:
                                                        its rates, three seeds: 1 hour

Two workers; everything travels through one link. The line to beat is one process, which needs no
link: its mini-batches take as long as a worker's. A scheme's rates are tuned on one seed, which the
comparison does not use, and for what is compared: the loss after two minutes, or the time to a
loss. Every grid has the same step, a factor of 2, and grows until its best rate is inside. If
workers wait for each other, the link changes only how long an update takes, not what it does. So
these schemes are tuned without the link, for as many updates as they make over it.

The loss is that of the global parameters on 1,000 test examples. `snapshots.py` writes them
down, and this instrument evaluates them after the run; to know when a loss is reached, one of them
every ten seconds during it. So measuring costs the link and the workers next to nothing.
`slow_link.json` keeps every curve; the notebook and the READMEs draw and quote it.

Needs a machine that allows private networks, and nothing else that computes meanwhile.
"""

import argparse
import functools
import json
import math
import statistics
import sys
import time

import numpy as np
from kept import read, write
from watch import ROOT
from watched_run import POINTS, Run

FOUND = ROOT / "measure" / "slow_link.json"
MBIT, SECONDS, SEEDS, TUNING_SEED = 10, 120, (0, 1, 2), 10
WORK = ("--model", "gpt", "--data", "text", "--steps", "1000000", "--timeout", "3600")
LINK = ("--link_mbit", str(MBIT))
PLACES = "results", "checkpoint_dir"  # flags that name folders of the machine
# Scheme -> its script, its flags, and the middle of its grid of rates: of the local steps, or of
# the ps.
SCHEMES = {
    "HogWild": ("HogWild", (), 0.2),
    "DOWNPOUR-Easy": ("DOWNPOUR-Easy", ("--window", 20), 0.05),
    "AEASGD": ("AEASGD", ("--window", 20), 0.2),
    "Synchronous-SGD": ("Synchronous-SGD", (), 0.4),
    "Local-SGD": ("Local-SGD", ("--window", 20), 0.2),
    "Sign-SGD": ("Sign-SGD", (), 0.002),
    "SlowMo": ("DiLoCo", ("--inner", "sgd", "--outer", "momentum", "--outer_rate", 1,
                          "--outer_momentum", 0.5), 0.2),
    "DiLoCo": ("DiLoCo", (), 0.004),
    "Async-DiLoCo": ("Async-DiLoCo", (), 0.004),
    "One process": ("Non-Distributed-Setup", ("--compute_ms", 30), 0.4),
    "One process, AdamW": ("DiLoCo", ("--workers", 1, "--outer_rate", 1, "--outer_momentum", 0,
                                      "--compute_ms", 30), 0.002),
}  # fmt: skip
ALONE = ("One process", "One process, AdamW")  # DiLoCo's one worker does what AdamW does
TOGETHER = ("Synchronous-SGD", "Local-SGD", "Sign-SGD", "SlowMo", "DiLoCo")  # all wait for all
LONGEST = 1200  # seconds, of a run to the target
# Worker 1 sleeps in each mini-batch. One takes 0.03 s, and a step 1.5 s: a pull, 20 mini-batches, a
# push. With the first, its mini-batches take three times as long, with the second, its steps.
STRAGGLERS = {"slow mini-batches": ("--delay", "1:0.06"), "slow steps": ("--delay", "1:0.18")}
LOW = 3.0  # bits per character: well below a bigram's
# What is compared by its time to a loss, with and without a straggler. To see Synchronous-SGD reach
# the lower one takes more than `LONGEST`.
TARGETS = [("Synchronous-SGD", ""), ("DiLoCo", "")]
TARGETS += [(scheme, kind) for kind in STRAGGLERS for scheme in ("DiLoCo", "Async-DiLoCo")]


def bigram() -> float:
    """The test loss of a model that counts pairs of characters, in bits per character."""
    from common import data

    own = argparse.Namespace(data="text", context=32)
    pairs = np.full((256, 256), 0.01)  # no pair is impossible
    np.add.at(pairs, data.load(own, "train"), 1)
    return float(-np.log2(pairs / pairs.sum(axis=1, keepdims=True))[data.load(own, "test")].mean())


def run_of(scheme: str, *flags) -> Run:
    example, own, _ = SCHEMES[scheme]
    return Run(example, *WORK, *own, *flags)


def race_of(scheme: str, *flags, seconds: float = SECONDS, goal: float = -math.inf) -> dict:
    """Trains over the link for so many seconds, or until the loss is at most `goal`."""
    link = () if scheme in ALONE else LINK
    with run_of(scheme, *link, *flags) as made:
        looked = time.time()
        while not made.over() and time.time() < made.began + seconds:
            time.sleep(0.5)  # only to look again
            made.snapshots()  # one process removes its old ones
            if goal > 0 and time.time() > looked + 10:
                looked = time.time()
                if made.last() <= goal:
                    break
        return {
            "flags": {k: v for k, v in made.flags.items() if k not in PLACES},
            "step": made.step(),
            "diverged": made.diverged(),
            "curve": made.curve(POINTS if goal < 0 else 1000),
        }


def final(made: dict) -> float:
    """The loss at the end: the mean over the last tenth of the curve, since one point is noisy."""
    curve = made["curve"]
    last = [loss for *_, loss in curve[-max(1, len(curve) // 10) :]]
    good = not made["diverged"] and np.isfinite(last).all()
    return statistics.mean(last) if good else math.inf


def reached(made: dict, goal: float) -> list[float] | None:
    """The first point of a curve with at most this loss; None if it has none."""
    return next((point for point in made["curve"] if point[-1] <= goal), None)


def grid(scheme: str, cost) -> list[list[float]]:
    """Tries rates, each twice the one below, until the best has one on both sides.

    Returns:
        Each rate with its `cost(flags)`; None if it diverged, or never came there.
    """
    middle = SCHEMES[scheme][2]
    found: dict[int, float] = {}
    wanted = [-1, 0, 1]
    while wanted:
        for k in wanted:
            found[k] = cost(("--learning_rate", middle * 2.0**k, "--seed", TUNING_SEED))
            print(f"{scheme}, rate {middle * 2.0**k:g}: {found[k]:.3f}", flush=True)
        best = min(found, key=found.__getitem__)
        wanted = [k for k in (best - 1, best + 1) if k not in found]
    kept = {k: found[k] if np.isfinite(found[k]) else None for k in sorted(found)}
    return [[middle * 2.0**k, value] for k, value in kept.items()]


def best_rate(tuning: dict, scheme: str) -> float:
    if scheme not in tuning:
        sys.exit(f"no rate of {scheme} is known: first run `slow_link tune {scheme}`")
    return min((value, rate) for rate, value in tuning[scheme] if value is not None)[1]


def tune(kept: dict, schemes: list[str]) -> None:
    """The loss after two minutes, for each rate."""
    for scheme in schemes:
        if scheme in TOGETHER:
            made = race_of(scheme, "--learning_rate", SCHEMES[scheme][2], seconds=SECONDS / 3)
            seconds, updates, *_ = made["curve"][-1]
            steps = round(updates / seconds * SECONDS)
            print(f"{scheme}: {steps} updates in {SECONDS} s", flush=True)

            def cost(flags, scheme=scheme, steps=steps):
                with run_of(scheme, *flags, "--steps", steps) as made:
                    while not made.over():
                        time.sleep(0.1)  # only to look again
                    return made.end()
        else:

            def cost(flags, scheme=scheme):
                return final(race_of(scheme, *flags))

        kept.setdefault("tuning", {})[scheme] = grid(scheme, cost)
        write(FOUND, kept)


def race(kept: dict, schemes: list[str]) -> None:
    """The schemes take turns, so that a slow minute of the machine does not hit one alone."""
    for seed in SEEDS:
        for scheme in schemes:
            rate = best_rate(kept["tuning"], scheme)
            made = race_of(scheme, "--learning_rate", rate, "--seed", seed)
            kept.setdefault("race", {}).setdefault(scheme, {})[str(seed)] = made
            print(f"{scheme}, seed {seed}: {final(made):.3f}", flush=True)
            write(FOUND, kept)


def target(kept: dict, _: list[str]) -> None:
    """Seconds until the loss is that of a bigram, and `LOW`; the runs take turns."""
    kept["bigram"] = bigram()
    tuning, made = kept.setdefault("target_tuning", {}), kept.setdefault("target", {})
    for scheme, kind in TARGETS:
        if (name := tuned_as(scheme, kind)) not in tuning:
            tuning[name] = grid(scheme, functools.partial(until, kept, scheme, kind))
            write(FOUND, kept)
    for seed in SEEDS:
        for scheme, kind in TARGETS:
            runs = made.setdefault(f"{scheme}, {kind}".removesuffix(", "), {})
            if str(seed) in runs:
                continue
            rate = best_rate(tuning, tuned_as(scheme, kind))
            goal = goal_of(kept, scheme)
            flags = ("--learning_rate", rate, "--seed", seed, *STRAGGLERS.get(kind, ()))
            runs[str(seed)] = race_of(scheme, *flags, seconds=LONGEST, goal=goal)
            point = reached(runs[str(seed)], goal)
            print(f"{scheme} {kind}, seed {seed}: {point}", flush=True)
            write(FOUND, kept)


def tuned_as(scheme: str, kind: str) -> str:
    """If workers wait for each other, a straggler changes only how long an update takes."""
    return scheme if scheme in TOGETHER or not kind else f"{scheme}, {kind}"


def goal_of(kept: dict, scheme: str) -> float:
    return kept["bigram"] if scheme == "Synchronous-SGD" else LOW


def until(kept: dict, scheme: str, kind: str, flags) -> float:
    """Until a run has this loss: the seconds, or the updates if its workers wait for each other."""
    goal = goal_of(kept, scheme)
    if scheme not in TOGETHER:
        made = race_of(scheme, *STRAGGLERS.get(kind, ()), *flags, seconds=300, goal=goal)
        return (reached(made, goal) or [math.inf])[0]
    with run_of(scheme, *flags) as run:
        while not run.over() and run.last() > goal and time.time() < run.began + 150:
            time.sleep(3)  # only to look again
        made = {"curve": run.curve(1000)}
    return (reached(made, goal) or [0, math.inf])[1]


def times(kept: dict, name: str, goal: float) -> list[list[float]]:
    """The point of each seed's run at which the loss is reached, by seconds."""
    return sorted(reached(made, goal) or [math.inf] * 4 for made in kept["target"][name].values())


def spread(values: list[float], how: str = ",.0f") -> str:
    """The median of three, and their range."""
    low, middle, high = (format(value, how) for value in sorted(values))
    return f"{middle} ({low} to {high})"


def table(kind: str) -> str:
    """A Markdown table for the READMEs: `target`, `straggler`, `race`, or `tuning SCHEMES`."""
    kept = json.loads(FOUND.read_text())
    what, _, names = kind.partition(" ")
    if what == "tuning":
        return tuning_table(kept, names.split(","))
    if what == "race":
        return race_table(kept)
    goals = {"target": [("Synchronous-SGD", kept["bigram"]), ("DiLoCo", kept["bigram"])]}
    goals["straggler"] = [
        (f"{scheme}, {kind}", LOW) for kind in STRAGGLERS for scheme in ("DiLoCo", "Async-DiLoCo")
    ]
    columns = "", "bits per character", "seconds", "updates", "MB through the link"
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    for name, goal in goals[what]:
        seconds, updates, sent, _ = zip(*times(kept, name, goal))
        lines.append(f"| {name} | {goal:.2f} | {spread(seconds)} | {spread(updates)} "
                     f"| {spread(sent)} |")  # fmt: skip
    return "\n".join(lines)


def tuning_table(kept: dict, names: list[str]) -> str:
    """Each rate with what it costs to reach the loss, of one other seed; the best one in bold."""
    lines = ["| | what is counted | learning rate: until the loss is reached |", "|---|---|---|"]
    for name, found in kept["target_tuning"].items():
        if name.partition(",")[0] not in names:
            continue
        best = min(value for _, value in found if value is not None)
        cells = [f"{rate:g}: {'never' if value is None else format(value, '.0f')}"
                 for rate, value in found]  # fmt: skip
        cells = [f"**{cell}**" if value == best else cell
                 for cell, (_, value) in zip(cells, found, strict=True)]  # fmt: skip
        unit = "updates" if name in TOGETHER else "seconds"
        lines.append(f"| {name} | {unit} | {', '.join(cells)} |")
    return "\n".join(lines)


def race_table(kept: dict) -> str:
    """The schemes by the loss after two minutes."""
    ends = {
        scheme: [final(made) for made in runs.values()] for scheme, runs in kept["race"].items()
    }
    lines = ["| | learning rate | updates | MB | seconds to a bigram's loss | bits per character |",
             "|---|---|---|---|---|---|"]  # fmt: skip
    for scheme in sorted(ends, key=lambda name: statistics.median(ends[name])):
        runs = list(kept["race"][scheme].values())
        _, updates, sent, _ = zip(*(made["curve"][-1] for made in runs))
        points = [reached(made, kept["bigram"]) for made in runs]
        soon = spread([seconds for seconds, *_ in points]) if all(points) else "not reached"
        traffic = "" if scheme in ALONE else f"{statistics.median(sent):,.0f}"
        lines.append(f"| {scheme} | {runs[0]['flags']['learning_rate']:g} "
                     f"| {statistics.median(updates):,.0f} | {traffic} "
                     f"| {soon} | {spread(ends[scheme], '.2f')} |")  # fmt: skip
    return "\n".join(lines)


def main() -> None:
    kinds = {"tune": tune, "race": race, "target": target}
    what, *names = sys.argv[1:] or [""]
    if what not in kinds or set(names) - set(SCHEMES):
        sys.exit(__doc__)
    kinds[what](read(FOUND), names or list(SCHEMES))


if __name__ == "__main__":
    main()
