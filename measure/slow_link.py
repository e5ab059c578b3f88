"""The small GPT over a link of 10 Mbit/s: which scheme learns it fastest?

    bash measure/start.sh slow_link tune [SCHEME...]    every rate of the grids: 1 hour
    bash measure/start.sh slow_link race [SCHEME...]    two minutes of each, three seeds: 70 minutes
    bash measure/start.sh slow_link target              time to a fixed loss, also with a straggler:
                                                        its rates, three seeds: 1 hour

Two workers; everything travels through one link. A scheme's rates are tuned on one seed, which the
comparison does not use, and for what is compared: the loss after two minutes, or the time to a
loss. Every grid has the same step, a factor of 2, and grows until its best rate is inside. If
workers wait for each other, the link changes only how long an update takes, not what it does. So
these schemes are tuned without the link, for as many updates as they make over it.

The loss is that of the global parameters on `EXAMPLES` test examples. `snapshots.py` writes them
down, and this instrument evaluates them after the run; to know when a loss is reached, one of them
every ten seconds during it. So measuring costs the link and the workers next to nothing.
`slow_link.json` keeps every curve; the notebook and the READMEs draw and quote it.

Needs a machine that allows private networks, and nothing else that computes meanwhile.
"""

import argparse
import functools
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from watch import ROOT

from common.record import trace

FOUND = ROOT / "measure" / "slow_link.json"
MBIT, SECONDS, SEEDS, TUNING_SEED = 10, 120, (0, 1, 2), 10
WORK = ("--model", "gpt", "--data", "text", "--steps", "1000000", "--timeout", "3600")
LINK = ("--link_mbit", str(MBIT))
EXAMPLES = 1000
POINTS = 60  # of a curve
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
}  # fmt: skip
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


def losses(folder: Path, snapshots: list[int], flags: dict) -> list[tuple[int, float]]:
    """The updates and the test loss of each snapshot."""
    import tensorflow.compat.v1 as tf  # late: it takes seconds, and runs must not wait

    from common import data, gpt, models

    own = argparse.Namespace(**flags)
    x, labels = data.load(own, "test")
    stride = max(1, len(x) // EXAMPLES)
    x, labels = x[::stride], labels[::stride]
    found = []
    with tf.Graph().as_default(), tf.Session() as session:
        params = {
            name: tf.placeholder(tf.float32, shape) for name, shape in gpt.shapes(own).items()
        }
        loss = models.evaluate("gpt", list(params.values()), tf.constant(x), tf.constant(labels))
        mean = tf.reduce_mean(loss["loss"])
        for k in snapshots:
            saved = tf.train.load_checkpoint(str(folder / str(k)))
            feed = {holder: saved.get_tensor(name) for name, holder in params.items()}
            updates = int(saved.get_tensor("global_step"))
            found.append((updates, float(session.run(mean, feed))))
    return found


def bigram() -> float:
    """The test loss of a model that counts pairs of characters, in bits per character."""
    from common import data

    own = argparse.Namespace(data="text", context=32)
    pairs = np.full((256, 256), 0.01)  # no pair is impossible
    np.add.at(pairs, data.load(own, "train"), 1)
    return float(-np.log2(pairs / pairs.sum(axis=1, keepdims=True))[data.load(own, "test")].mean())


class Run:
    """A run of a scheme; `with` stops it, and deletes what it has written."""

    def __init__(self, scheme: str, *flags):
        example, own, _ = SCHEMES[scheme]
        self._where = tempfile.TemporaryDirectory()
        self._results, self._kept = (
            Path(self._where.name, "results"),
            Path(self._where.name, "kept"),
        )
        self._kept.mkdir()
        self._command = ["bash", f"{ROOT}/{example}/run.sh", "--plain", "--results",
                         str(self._results), *map(str, [*WORK, *own, *flags])]  # fmt: skip
        env = os.environ | {"PYTHON": sys.executable, "NO_CURVES": "1"}
        self._screen = open(Path(self._where.name, "screen"), "w+")
        self._run = subprocess.Popen(
            self._command, stdout=self._screen, stderr=self._screen, env=env
        )
        self._watch = None

    def __enter__(self):
        self._wait(lambda: self._events() and (self._results / "launches.jsonl").exists())
        self.flags = json.loads((self._results / "launches.jsonl").read_text())["flags"]
        self.began = min(trace.began(mine[0]) for mine in self._events())
        return self

    def __exit__(self, *_):
        if self._watch:
            self._watch.kill()  # it would wait for a ps that has gone
            self._watch.wait()
        if not self.over():
            self._run.send_signal(signal.SIGINT)
            self._run.wait()
        self._screen.close()
        self._where.cleanup()

    def _wait(self, ready) -> None:
        while not ready():
            time.sleep(0.1)  # only to look again
            if self._run.poll() is not None:
                self._screen.seek(0)
                sys.exit(f"{' '.join(self._command)} failed:\n{self._screen.read()}")
            if self._watch is None and (self._results / "launches.jsonl").exists():
                self._look_at(self._run.pid)

    def _look_at(self, pid: int) -> None:
        """Starts `snapshots.py` in the network of the launcher's tasks."""
        arguments = [str(pid), str(self._results), str(self._kept)]
        with open(Path(self._where.name, "snapshots"), "w") as lines:
            self._watch = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("snapshots.py")), *arguments],
                stdout=lines,
            )

    def _events(self) -> list:
        return [mine for mine in trace.read_events(self._results, 2) if mine]

    def snapshots(self) -> dict[int, float]:
        """The number of each, and how many seconds after the start it was made."""
        lines = Path(self._where.name, "snapshots").read_text().splitlines()
        made = {int(k): float(at) - self.began for k, at in map(str.split, lines[:-1])}
        return {k: seconds for k, seconds in made.items() if seconds >= 0}

    def step(self) -> list[float]:
        """Of each worker: the median seconds between the starts of two of its steps."""
        starts = [[trace.began(each) for each in mine] for mine in trace.steady(self._events())]
        return [round(float(np.median(np.diff(mine))), 4) for mine in starts if len(mine) > 1]

    def last(self) -> float:
        """The loss of the newest snapshot; infinite before the first."""
        newest = list(self.snapshots())[-1:]
        return losses(self._kept, newest, self.flags)[0][1] if newest else math.inf

    def over(self) -> bool:
        return self._run.poll() is not None

    def diverged(self) -> bool:
        return self._run.poll() == 2

    def end(self) -> float:
        """The loss of a run that has ended by itself, on all test examples."""
        if self.diverged():
            return math.inf
        return json.loads((self._results / "summary.json").read_text())["test_loss"]

    def curve(self, points: int = POINTS) -> list[list[float]]:
        """Points of seconds since the start, updates, megabytes through the link, and loss."""
        made = list(self.snapshots().items())
        made = made[:: max(1, len(made) // points)]
        lines = (self._results / "network.jsonl").read_text().splitlines()
        traffic = [json.loads(line) for line in lines]
        at = [line["time"] - self.began for line in traffic]
        sent = np.interp([when for _, when in made], at, [line["bytes"] for line in traffic]) / 1e6
        found = losses(self._kept, [k for k, _ in made], self.flags)
        rows = zip(made, sent, found, strict=True)
        return [[round(when, 3), n, round(mb, 3), round(loss, 4)]
                for (_, when), mb, (n, loss) in rows]  # fmt: skip


def race_of(scheme: str, *flags, seconds: float = SECONDS, goal: float = -math.inf) -> dict:
    """Trains over the link for so many seconds, or until the loss is at most `goal`."""
    with Run(scheme, *LINK, *flags) as made:
        looked = time.time()
        while not made.over() and time.time() < made.began + seconds:
            time.sleep(0.5)  # only to look again
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
                with Run(scheme, *flags, "--steps", steps) as made:
                    while not made.over():
                        time.sleep(0.1)  # only to look again
                    return made.end()
        else:

            def cost(flags, scheme=scheme):
                return final(race_of(scheme, *flags))

        kept.setdefault("tuning", {})[scheme] = grid(scheme, cost)
        write(kept)


def race(kept: dict, schemes: list[str]) -> None:
    """The schemes take turns, so that a slow minute of the machine does not hit one alone."""
    for seed in SEEDS:
        for scheme in schemes:
            rate = best_rate(kept["tuning"], scheme)
            made = race_of(scheme, "--learning_rate", rate, "--seed", seed)
            kept.setdefault("race", {}).setdefault(scheme, {})[str(seed)] = made
            print(f"{scheme}, seed {seed}: {final(made):.3f}", flush=True)
            write(kept)


def target(kept: dict, _: list[str]) -> None:
    """Seconds until the loss is that of a bigram, and `LOW`; the runs take turns."""
    kept["bigram"] = bigram()
    tuning, made = kept.setdefault("target_tuning", {}), kept.setdefault("target", {})
    for scheme, kind in TARGETS:
        if (name := tuned_as(scheme, kind)) not in tuning:
            tuning[name] = grid(scheme, functools.partial(until, kept, scheme, kind))
            write(kept)
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
            write(kept)


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
    with Run(scheme, *flags) as run:
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
        lines.append(f"| {scheme} | {runs[0]['flags']['learning_rate']:g} "
                     f"| {statistics.median(updates):,.0f} | {statistics.median(sent):,.0f} "
                     f"| {soon} | {spread(ends[scheme], '.2f')} |")  # fmt: skip
    return "\n".join(lines)


def write(kept: dict) -> None:
    part = FOUND.with_suffix(".part")
    part.write_text(json.dumps(kept, allow_nan=False) + "\n")
    part.replace(FOUND)


def main() -> None:
    kinds = {"tune": tune, "race": race, "target": target}
    what, *names = sys.argv[1:] or [""]
    if what not in kinds or set(names) - set(SCHEMES):
        sys.exit(__doc__)
    kept = json.loads(FOUND.read_text()) if FOUND.exists() else {}
    kinds[what](kept, names or list(SCHEMES))


if __name__ == "__main__":
    main()
