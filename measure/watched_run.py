"""A run whose parameters are watched on its ps, which costs the link and the workers nothing."""

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from watch import ROOT

from common.record import trace

EXAMPLES = 1000
POINTS = 60  # of a curve


def losses(
    folder: Path, snapshots: list[int], flags: dict, examples: int = EXAMPLES
) -> list[tuple[int, float]]:
    """The updates and the test loss of each snapshot, on about so many test examples."""
    import tensorflow.compat.v1 as tf  # late: it takes seconds, and runs must not wait

    from common import data, models

    own = argparse.Namespace(**flags)
    x, labels = data.load(own, "test")
    stride = max(1, len(x) // examples)
    x, labels = x[::stride], labels[::stride]
    found = []
    with tf.Graph().as_default(), tf.Session() as session:
        names = [variable.op.name for variable in models.create(own)]
        params = [tf.placeholder(tf.float32, shape) for shape in models.shapes(own)]
        measures = models.evaluate(own.model, params, tf.constant(x), tf.constant(labels))
        mean = tf.reduce_mean(measures["loss"])
        for k in snapshots:
            saved = tf.train.load_checkpoint(str(folder / str(k)))
            feed = {param: saved.get_tensor(name) for name, param in zip(names, params)}
            updates = int(saved.get_tensor("global_step"))
            found.append((updates, float(session.run(mean, feed))))
    return found


class Run:
    """A run of an example; `with` stops it, and deletes what it has written.

    Args:
        example: its folder.
        flags: its command line.
        every: seconds between two snapshots.
    """

    def __init__(self, example: str, *flags, every: float = 1.0):
        self._every = every
        self._where = tempfile.TemporaryDirectory()
        self._results, self._kept = (
            Path(self._where.name, "results"),
            Path(self._where.name, "kept"),
        )
        self._kept.mkdir()
        self._command = ["bash", f"{ROOT}/{example}/run.sh", "--plain", "--results",
                         str(self._results), *map(str, flags)]  # fmt: skip
        env = os.environ | {"PYTHON": sys.executable, "NO_CURVES": "1"}
        self._screen = open(Path(self._where.name, "screen"), "w+")
        self._run = subprocess.Popen(
            self._command, stdout=self._screen, stderr=self._screen, env=env
        )
        self._watch = None

    def __enter__(self):
        self._wait(lambda: (self._results / "launches.jsonl").exists() and self._events())
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
        arguments = [str(pid), str(self._results), str(self._kept), str(self._every)]
        with open(Path(self._where.name, "snapshots"), "w") as lines:
            self._watch = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("snapshots.py")), *arguments],
                stdout=lines,
            )

    def _events(self) -> list:
        launch = json.loads((self._results / "launches.jsonl").read_text().splitlines()[0])
        events = trace.read_events(self._results, launch["flags"]["workers"])
        return [mine for mine in events if mine]

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
