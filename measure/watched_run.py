"""A run whose parameters are watched on its ps, which costs the link and the workers nothing."""

import argparse
import contextlib
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
import watch
from watch import ROOT

from common.record import results, trace

EXAMPLES = 1000
POINTS = 60  # of a curve


class Losses:
    """Evaluates the snapshots of a run, each once.

    Args:
        folder: where the snapshots are.
        flags: of the run.
        examples: about how many test examples.
    """

    def __init__(self, folder: Path, flags: dict, examples: int):
        from common import data, models  # late: it takes seconds, and runs must not wait

        own = argparse.Namespace(**flags)
        x, labels = data.load(own, "test")
        import tensorflow.compat.v1 as tf  # after common, which makes its start quiet

        stride = max(1, len(x) // examples)
        self._folder, self._read = folder, tf.train.load_checkpoint
        self._found: dict[int, tuple[int, float]] = {}
        with tf.Graph().as_default():
            self._names = [variable.op.name for variable in models.create(own)]
            self._params = [tf.placeholder(tf.float32, shape) for shape in models.shapes(own)]
            test = tf.constant(x[::stride]), tf.constant(labels[::stride])
            self._mean = tf.reduce_mean(models.evaluate(own.model, self._params, *test)["loss"])
            self._session = tf.Session()

    def close(self) -> None:
        self._session.close()

    def __call__(self, k: int) -> tuple[int, float]:
        """The updates and the loss of snapshot `k`."""
        if k not in self._found:
            saved = self._read(str(self._folder / str(k)))
            feed = {param: saved.get_tensor(name)
                    for name, param in zip(self._names, self._params, strict=True)}  # fmt: skip
            loss = float(self._session.run(self._mean, feed))
            self._found[k] = int(saved.get_tensor("global_step")), loss
        return self._found[k]


class Run:
    """A run of an example; `with` stops it, and deletes what it has written.

    Args:
        example: its folder.
        flags: its command line.
        every, share: seconds between two snapshots; after this share of the time, if that is more.
        examples: on about how many test examples it is evaluated.
        together: all workers start together. They do not by themselves, as on a small machine their
            processes take seconds to start. So each is stopped after its first step until all have
            made one, and can be watched; `began` is as long before that as these steps took. From
            then on, they have the usual priority, even if this process has a lower one.

    Where there is no ps, the snapshots are the checkpoints, one each second. To save them takes the
    process some milliseconds, which do not count: between two steps pass as many as usually.
    """

    def __init__(
        self,
        example: str,
        *flags,
        every: float = 1.0,
        share: float = 0.0,
        examples: int = EXAMPLES,
        together: bool = False,
    ):
        self._spacing, self._examples = (str(every), str(share)), examples
        self._together = together
        self._where = tempfile.TemporaryDirectory()
        self._results, self._kept = (
            Path(self._where.name, "results"),
            Path(self._where.name, "kept"),
        )
        self._kept.mkdir()
        self._command = ["bash", f"{ROOT}/{example}/run.sh", "--plain", "--results",
                         str(self._results), *map(str, flags)]  # fmt: skip
        self._screen = open(Path(self._where.name, "screen"), "w+")
        self._run = subprocess.Popen(
            self._command,
            stdout=self._screen,
            stderr=self._screen,
            env=watch.environment(NO_CURVES="1"),
        )
        self._watch = self._losses = None

    def __enter__(self):
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self) -> None:
        self._wait(self._launched)
        self.flags = self._launched()["flags"]
        begun = self._kept / "begun"
        if not self._together:
            begun.touch()
        if self.flags["ps"]:
            self._look_at(self._run.pid)
        if self._together:
            self.began = self._start_together()
            begun.touch()
        else:
            self._wait(self.events)
            self.began = min(trace.began(mine[0]) for mine in self.events())

    def __exit__(self, *_):
        if self._watch:
            self._watch.kill()  # it would wait for a ps that has gone
            self._watch.wait()
        if not self.over():
            self._run.send_signal(signal.SIGINT)
            self._run.wait()
        if self._losses:
            self._losses.close()
        self._screen.close()
        self._where.cleanup()

    def _wait(self, ready, pause: float = 0.1) -> None:
        while not ready():
            time.sleep(pause)  # only to look again
            if self._run.poll() is not None:
                self._fail()

    def _fail(self) -> None:
        self._screen.seek(0)
        sys.exit(f"{' '.join(self._command)} failed:\n{self._screen.read()}")

    def _start_together(self) -> float:
        stopped: dict[int, int] = {}  # worker -> its process

        def all_stopped() -> bool:
            for k in set(range(self.flags["workers"])) - set(stopped):
                file = Path(trace.events_file(self._results, k))
                if file.exists() and file.stat().st_size:
                    stopped[k] = watch.task_pid(self._results, "worker", k)
                    os.kill(stopped[k], signal.SIGSTOP)
            return len(stopped) == self.flags["workers"] and self._is_watched()

        try:
            self._wait(all_stopped, 0.01)
            took = [mine[-1]["time"] - trace.began(mine[0]) for mine in self.events()]
            watch.first(str(self._results))  # before those that still start
        finally:
            for pid in stopped.values():
                os.kill(pid, signal.SIGCONT)
        return time.time() - float(np.median(took))

    def _is_watched(self) -> bool:
        """Whether `snapshots.py` is ready, where there is a ps."""
        return not self.flags["ps"] or Path(self._where.name, "snapshots").stat().st_size > 0

    def _look_at(self, pid: int) -> None:
        """Starts `snapshots.py` in the network of the launcher's tasks."""
        arguments = [str(pid), str(self._results), str(self._kept), *self._spacing]
        with open(Path(self._where.name, "snapshots"), "w") as lines:
            self._watch = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("snapshots.py")), *arguments],
                stdout=lines,
            )

    def _launched(self) -> dict | None:
        """What the launcher has written about its start; None before its line is complete."""
        launches = results.Tail(self._results / "launches.jsonl").read()
        return launches[0] if launches else None

    def events(self) -> list[list[dict]]:
        """Of each worker that has made a step."""
        events = trace.read_events(self._results, self._launched()["flags"]["workers"])
        return [mine for mine in events if mine]

    def snapshots(self) -> dict[int, float]:
        """The number of each, and how many seconds after the start it was made."""
        if self._watch is None:
            return self._checkpoints()
        lines = Path(self._where.name, "snapshots").read_text().splitlines()
        made = {int(k): float(at) - self.began for k, at in map(str.split, lines[:-1])}
        return {k: seconds for k, seconds in made.items() if seconds >= 0}

    def _checkpoints(self) -> dict[int, float]:
        """The same of a process without a ps: it keeps its two newest ones, we keep all."""
        for index in self._results.glob("checkpoints/model.ckpt-*.index"):
            kept = self._kept / index.stem.partition("-")[2]
            with contextlib.suppress(FileNotFoundError):  # it has just been removed
                for file in sorted(index.parent.glob(f"{index.stem}.*")):  # the index last
                    if not kept.with_suffix(file.suffix).exists():
                        os.link(file, kept.with_suffix(file.suffix))
        (mine,) = trace.read_events(self._results, 1)
        ends = np.array([step["time"] for step in mine])
        begins = np.array([trace.began(step) for step in mine])
        between = float(np.median(begins[1:] - ends[:-1])) if len(mine) > 1 else 0.0
        seconds = np.cumsum(ends - begins + between) - between
        made = sorted(int(file.stem) for file in self._kept.glob("*.index"))
        return {k: float(seconds[k - 1]) for k in made if 0 < k <= len(mine)}

    def step(self) -> list[float]:
        """Of each worker: the median seconds between the starts of two of its steps."""
        starts = [[trace.began(each) for each in mine] for mine in trace.steady(self.events())]
        return [round(float(np.median(np.diff(mine))), 4) for mine in starts if len(mine) > 1]

    def loss(self, k: int) -> tuple[int, float]:
        """The updates in snapshot `k`, and its loss."""
        if self._losses is None:
            self._losses = Losses(self._kept, self.flags, self._examples)
        return self._losses(k)

    def last(self) -> float:
        """The loss of the newest snapshot; infinite before the first."""
        newest = list(self.snapshots())[-1:]
        return self.loss(newest[0])[1] if newest else math.inf

    def over(self) -> bool:
        return self._run.poll() is not None

    def wait_for_end(self) -> None:
        """Waits until the run ends by itself.

        Raises:
            SystemExit: if its exit code is not 0.
        """
        if self._run.wait():
            self._fail()

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
        sent = self.megabytes([when for _, when in made])
        rows = zip(made, sent, (self.loss(k) for k, _ in made), strict=True)
        return [[round(when, 3), n, round(mb, 3), round(loss, 4)]
                for (_, when), mb, (n, loss) in rows]  # fmt: skip

    def megabytes(self, times: list[float]) -> list[float]:
        """What the link carried until so many seconds after the start; nothing without a ps."""
        if not self.flags["ps"]:
            return [0.0] * len(times)
        notes = results.Tail(self._results / "network.jsonl")
        traffic = notes.read()
        while traffic[-1]["time"] - self.began < max(times, default=0.0) and not self.over():
            time.sleep(0.05)  # only to look again: on a busy machine the launcher notes late
            traffic += notes.read()
        at = [line["time"] - self.began for line in traffic]
        first, *sent = np.interp([0.0, *times], at, [line["bytes"] for line in traffic]) / 1e6
        return [float(each - first) for each in sent]
