"""The small GPT over a link of 10 Mbit/s: which scheme learns it fastest?

    bash measure/start.sh slow_link tune [SCHEME...]    every rate of the grid: 2 hours
    bash measure/start.sh slow_link race [SCHEME...]    the best rate, three seeds: 1 hour
    bash measure/start.sh slow_link target              time to a fixed loss, also with a straggler

Two workers; everything travels through one link. A scheme's rates are tuned on one seed, which the
comparison does not use, for as long as the comparison lasts. Every grid has the same step, a factor
of 2, and grows until its best rate is inside.

The loss is that of the global parameters on `EXAMPLES` test examples. It costs the link nothing:
the ps writes checkpoints to its own disk, one each second, and this instrument evaluates them after
the run. `slow_link.json` keeps every curve; the notebook and the READMEs draw and quote it.

Needs a machine that allows private networks, and nothing else that computes meanwhile.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from watch import ROOT

from common.record import trace

FOUND = ROOT / "measure" / "slow_link.json"
MBIT, SECONDS, SEEDS, TUNING_SEED = 10, 120, (0, 1, 2), 10
WORK = ("--model", "gpt", "--data", "text", "--link_mbit", str(MBIT), "--steps", "1000000")
EXAMPLES = 2000
# Scheme -> its script, its flags, and the middle of its grid of rates: of the local steps, or of
# the ps.
SCHEMES = {
    "HogWild": ("HogWild", (), 0.2),
    "DOWNPOUR-Easy": ("DOWNPOUR-Easy", ("--window", 20), 0.05),
    "Synchronous-SGD": ("Synchronous-SGD", (), 0.4),
    "AEASGD": ("AEASGD", ("--window", 20), 0.2),
    "Local-SGD": ("Local-SGD", ("--window", 20), 0.2),
    "SlowMo": ("DiLoCo", ("--inner", "sgd", "--outer", "momentum", "--outer_rate", 1,
                          "--outer_momentum", 0.5), 0.2),
    "DiLoCo": ("DiLoCo", (), 0.004),
    "Async-DiLoCo": ("Async-DiLoCo", (), 0.004),
}  # fmt: skip
LONGEST = 1200  # seconds, of a run to the target
STRAGGLER = "1:0.05"  # worker 1 sleeps in each mini-batch, so that it needs three times as long


class Checkpoints(threading.Thread):
    """Keeps every checkpoint of a run: hard links, since the run deletes all but the newest two."""

    def __init__(self, source: Path, target: Path):
        super().__init__(daemon=True)
        self._source, self._target, self._ended = source, target, threading.Event()
        self.seen: dict[int, float] = {}  # updates -> when it was written
        target.mkdir()

    def run(self):
        while not self._ended.wait(0.2):
            self._look()
        self._look()

    def stop(self) -> None:
        self._ended.set()
        self.join()

    def _look(self) -> None:
        for index in self._source.glob("*.index"):  # written last
            step = int(re.search(r"-(\d+)\.index$", index.name)[1])
            if step in self.seen:
                continue
            with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                when = index.stat().st_mtime
                for file in [*self._source.glob(f"{index.stem}.data*"), index]:
                    name = file.name.replace(index.stem, str(step))
                    os.link(file, self._target / name)
                self.seen[step] = when


def losses(folder: Path, steps: list[int], flags: dict) -> list[float]:
    """The test loss of each checkpoint."""
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
        for step in steps:
            saved = tf.train.load_checkpoint(str(folder / str(step)))
            feed = {holder: saved.get_tensor(name) for name, holder in params.items()}
            found.append(float(session.run(mean, feed)))
    return found


def bigram() -> float:
    """The test loss of a model that counts pairs of characters, in bits per character."""
    from common import data

    own = argparse.Namespace(data="text", context=32)
    pairs = np.full((256, 256), 0.01)  # no pair is impossible
    np.add.at(pairs, data.load(own, "train"), 1)
    return float(-np.log2(pairs / pairs.sum(axis=1, keepdims=True))[data.load(own, "test")].mean())


def run(scheme: str, *flags, seconds: float = SECONDS, target: float | None = None) -> dict:
    """Trains for so many seconds, or until a checkpoint's loss is at most `target`.

    Returns:
        The flags, the worker's examples, and the curve: lists of seconds since the start, updates,
        megabytes through the link, bits per character.
    """
    example, own, _ = SCHEMES[scheme]
    with tempfile.TemporaryDirectory() as where:
        results, kept = Path(where, "results"), Path(where, "kept")
        command = ["bash", f"{ROOT}/{example}/run.sh", "--plain", "--results", str(results), *WORK]
        command += ["--timeout", str(seconds + 300), *map(str, [*own, *flags])]
        env = os.environ | {"PYTHON": sys.executable, "NO_CURVES": "1"}
        watcher = Checkpoints(results / "checkpoints", kept)
        with open(Path(where, "screen"), "w+") as screen:
            process = subprocess.Popen(command, stdout=screen, stderr=screen, env=env)
            watcher.start()
            began, evaluated = None, 0
            while process.poll() is None:
                time.sleep(1)  # only to look again: the run goes on by itself
                if began is None and (events := trace.read_events(results, 2)) and any(events):
                    began = min(trace.began(mine[0]) for mine in events if mine)
                over = began is not None and time.time() > began + seconds
                if target is not None and began is not None and len(watcher.seen) > evaluated + 10:
                    settings = json.loads((results / "launches.jsonl").read_text())["flags"]
                    evaluated = len(watcher.seen)
                    over |= min(losses(kept, sorted(watcher.seen)[-1:], settings)) <= target
                if over:
                    process.send_signal(signal.SIGINT)
                    process.wait()
            watcher.stop()
            screen.seek(0)
            text = screen.read()
        if began is None or process.returncode not in (0, 2, 130):  # 2: the loss diverged
            sys.exit(f"{' '.join(command)} failed:\n{text}")
        settings = json.loads((results / "launches.jsonl").read_text())["flags"]
        steps = sorted(step for step, when in watcher.seen.items() if when < began + seconds + 1)
        traffic = [
            json.loads(line) for line in (results / "network.jsonl").read_text().splitlines()
        ]
        times = [watcher.seen[step] - began for step in steps]
        at = [line["time"] - began for line in traffic]
        sent = np.interp(times, at, [line["bytes"] for line in traffic]) / 1e6
        curve = [times, steps, sent.tolist(), losses(kept, steps, settings)]
        shutil.rmtree(kept)
        diverged = process.returncode == 2
        points = [[round(value, 4) for value in point] for point in zip(*curve, strict=True)]
        return {"scheme": scheme, "flags": settings, "diverged": diverged, "curve": points}


def final(curve: list[list[float]]) -> float:
    """The loss at the end: the mean over the last tenth of the checkpoints, since one is noisy."""
    last = [loss for *_, loss in curve[-max(1, len(curve) // 10) :]]
    return statistics.mean(last) if np.isfinite(last).all() else float("inf")


def reached(curve: list[list[float]], target: float) -> list[float] | None:
    """The first point of a curve with at most this loss; None if it has none."""
    return next((point for point in curve if point[-1] <= target), None)


def tuned(scheme: str, *flags) -> list[list[float]]:
    """Tries rates, each twice the one below, until the best has one on both sides.

    Returns:
        Each rate with the loss at the end; infinite if it diverged.
    """
    middle = SCHEMES[scheme][2]
    found: dict[int, float] = {}
    wanted = [-1, 0, 1]
    while wanted:
        for k in wanted:
            how = ("--learning_rate", middle * 2.0**k, "--seed", TUNING_SEED)
            made = run(scheme, *how, *flags)
            found[k] = float("inf") if made["diverged"] else final(made["curve"])
            print(f"{scheme}, rate {middle * 2.0**k:g}: {found[k]:.3f}", flush=True)
        best = min(found, key=found.__getitem__)
        wanted = [k for k in (best - 1, best + 1) if k not in found]
    return [[middle * 2.0**k, found[k]] for k in sorted(found)]


def best_rate(kept: dict, scheme: str) -> float:
    if scheme not in kept.get("tuning", {}):
        sys.exit(f"no rate of {scheme} is known: first run `slow_link tune {scheme}`")
    return min(kept["tuning"][scheme], key=lambda pair: pair[1])[0]


def tune(kept: dict, schemes: list[str]) -> None:
    for scheme in schemes:
        kept.setdefault("tuning", {})[scheme] = tuned(scheme)
        write(kept)


def race(kept: dict, schemes: list[str]) -> None:
    """The schemes take turns, so that a slow minute of the machine does not hit one alone."""
    for seed in SEEDS:
        for scheme in schemes:
            rate = best_rate(kept, scheme)
            made = run(scheme, "--learning_rate", rate, "--seed", seed)
            kept.setdefault("race", {}).setdefault(scheme, {})[str(seed)] = made
            print(f"{scheme}, seed {seed}: {final(made['curve']):.3f}", flush=True)
            write(kept)


def target(kept: dict, _: list[str]) -> None:
    """Seconds until the loss is that of a bigram; the runs take turns."""
    goal = kept["bigram"] = bigram()
    pairs = [("Synchronous-SGD", "equal", ()), ("DiLoCo", "equal", ()),
             ("DiLoCo", "straggler", ("--delay", STRAGGLER)),
             ("Async-DiLoCo", "straggler", ("--delay", STRAGGLER))]  # fmt: skip
    for seed in SEEDS:
        for scheme, kind, flags in pairs:
            rate = best_rate(kept, scheme)
            made = run(scheme, "--learning_rate", rate, "--seed", seed, *flags,
                       seconds=LONGEST, target=goal)  # fmt: skip
            point = reached(made["curve"], goal)
            kept.setdefault("target", {}).setdefault(f"{scheme}, {kind}", {})[str(seed)] = point
            print(f"{scheme}, {kind}, seed {seed}: {point}", flush=True)
            write(kept)


def write(kept: dict) -> None:
    part = FOUND.with_suffix(".part")
    part.write_text(json.dumps(kept) + "\n")
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
