"""The steps of the training loop: run one by one, each noted in the events."""

import json
import math
import os
import time
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from common.training import clocks, graphs, results


class Replica(NamedTuple):
    """What a step reports of one replica: a worker process, a thread or a tower."""

    step: tf.Operation
    loss: tf.Tensor
    number: tf.Tensor
    pulled_at: tf.Tensor | None = None


class Step:
    """One step operation, and the events files of the replicas that it trains.

    `results.py` says what a line of events holds.
    """

    def __init__(self, task, first: int, replicas: Sequence[Replica]):
        """`first` is the index of the first replica; all of them have the same `step`."""
        self.op = replicas[0].step
        self.numbers = [replica.number.op for replica in replicas]
        rows = [row for replica in replicas for row in self._rows(task, replica)]
        self.count = task.flags.steps_per_execution
        if self.count > 1:
            from common.training.several import Several

            self._several = Several(self.op, rows, self.count, f"rows-worker-{first}")
            self.fetch = self._several.last(self.op), self._several.noted
        else:
            self.fetch = self.op, [row[tf.newaxis] for row in rows]
        self._window = getattr(task.flags, "window", 1)
        self._local_step = 0
        mode = "a" if int(os.environ.get("TASK_RESTARTS", 0)) else "w"
        paths = [results.events_file(task.flags.results, first + k) for k in range(len(replicas))]
        self._files = [open(path, mode, encoding="utf-8") for path in paths]
        self._lines: list[list[str]] = [[] for _ in replicas]
        self._flushed = 0.0

    @staticmethod
    def _rows(task, replica: Replica) -> list[tf.Tensor]:
        """Two rows of numbers (float64), one for each place where they are: one transfer each."""
        number = replica.number
        pulled_at = number if replica.pulled_at is None else replica.pulled_at

        def row(*values):
            values = [math.nan if value is None else value for value in values]
            return tf.stack([tf.cast(value, tf.float64) for value in values])

        with tf.device(task.device):
            computed = clocks.noted("computed", number)
            if computed is not None:  # an elastic worker pushes first and computes then
                computed = tf.maximum(computed, clocks.now([replica.loss]))
            waited, arrived = clocks.noted("waited", number), clocks.noted("arrived", pulled_at)
            local = row(replica.loss, waited, arrived, computed)
        with tf.device(number.device):
            times = clocks.noted("read", pulled_at), clocks.noted("counted", number)
            return [local, row(number, pulled_at, *times)]

    def prepare(self, session: tf.Session) -> None:
        """For a new session, also after a recovery."""
        self.session = session
        self._counted = [math.nan] * len(self._lines)  # when, the last update of each replica
        self._call = session.make_callable(self.fetch)
        if self.count > 1:
            self._several.forget(session)

    def run(self, fetches=None, feed_dict=None):
        """Makes the step, or `--steps_per_execution` of them, without hooks.

        Returns:
            The values of `fetches`, if there are any; of several steps, of the last.
        """
        began, values = time.time(), None
        try:
            if fetches is None:
                _, rows = self._call()
            else:
                values, rows = self.session.run([fetches, self.fetch[1]], feed_dict)
        except tf.errors.OutOfRangeError:
            if self.count > 1:  # --steps was reached in the middle of the call
                self.note(self._several.left(self.session), began, math.nan)
            raise
        self.note(rows, began, time.time())
        return values

    def last(self, fetches):
        """`fetches` of the last of several steps in a call."""
        if self.count == 1:
            return fetches
        return tf.nest.map_structure(self._several.last, fetches, expand_composites=True)

    def note(self, rows: Sequence, began: float, ended: float) -> None:
        """Adds a line for each step and replica.

        Args:
            rows: of each replica two arrays, [steps, 4] each, as `_rows` makes them.
            began: when the call of the session began.
            ended: when it ended; NaN if it broke off.

        Raises:
            tf.train.NanLossDuringTrainingError: when a loss is not a number any more.
        """
        for k, lines in enumerate(self._lines):
            at, steps = began, zip(*rows[2 * k : 2 * k + 2])
            for i, ((loss, waited, arrived, computed), counts) in enumerate(steps, 1):
                number, pulled_at = map(int, counts[:2])
                read, counted = counts[2:]
                # Inside a call, the worker does not see when its push is over.
                over = ended if i == len(rows[0]) else _known(computed, counted)
                over = _known(over, computed, counted)
                at = _known(waited, at)
                pulled, computed = _known(arrived, at), _known(computed, over)
                event = {
                    "time": over, "local_step": self._local_step + i * self._window,
                    "global_step": number + 1, "loss": float(loss),
                    "staleness": max(0, number - pulled_at), "pulled_at": pulled_at,
                    "gap": max(read - self._counted[k], 0.0), "out": counted - read,
                    "pull": max(0, pulled - at), "compute": max(0, computed - pulled),
                    "push": max(0, over - computed),
                }  # fmt: skip
                lines.append(_line(event))
                at, self._counted[k] = over, counted
        self._local_step += self._window * len(rows[0])
        if any(math.isnan(loss) for local in rows[::2] for loss in local[:, 0]):
            raise tf.train.NanLossDuringTrainingError
        if time.time() - self._flushed > 0.2:
            self.flush()

    def flush(self) -> None:
        """Whole lines in one write: a reader, or a kill, never finds half a line."""
        for file, lines in zip(self._files, self._lines):
            file.write("".join(lines))
            file.flush()
            lines.clear()
        self._flushed = time.time()


def _known(*times: float) -> float:
    """The first that is not NaN."""
    return next(time for time in times if time == time)


def _line(event: dict) -> str:
    """As JSON, times to the microsecond; what was not measured (NaN) is null."""
    rounded = {key: round(value, 6) if key not in ("loss",) else value
               for key, value in event.items()}  # fmt: skip
    absent = {key: None for key in ("gap", "out") if math.isnan(rounded[key])}
    return json.dumps(rounded | absent) + "\n"


class Session:
    """What the loop calls `sess`: a monitored session that knows a step when it runs one.

    `sess.run(step)` makes one step (`--steps_per_execution` of them) and returns None.
    `sess.run([step, loss])` does so, too, and returns the values. Whatever does not need the step
    is read from TensorFlow's session without making one.

    TensorFlow's hooks take more time than a small step, so those of `session.training` see one step
    in every 0.1 s: soon enough to log, save and stop. Hooks of the script's own see every step.
    """

    def __init__(self, monitored: tf.train.MonitoredSession, steps: list[Step], every: bool):
        self._monitored, self._steps, self._every = monitored, steps, every
        self._of = {step.op: step for step in steps}
        self._found: dict[tuple[str, ...], Step | None] = {}
        self._due = 0.0
        self.should_stop = monitored.should_stop
        self.graph = monitored.graph

    def run(self, fetches, feed_dict=None):
        """As `tf.Session.run`."""
        plain = feed_dict is None and isinstance(fetches, tf.Operation)
        step = self._of.get(fetches) if plain else None
        values = None if step else fetches
        step = step or self._step_in(fetches)
        if step is None:
            return self._monitored.run_step_fn(
                lambda step_context: self._steps[0].session.run(fetches, feed_dict)
            )
        if step.count > 1 and values is not None:
            values = step.last(values)
        hooks = step is self._steps[0] and (self._every or time.monotonic() > self._due)
        if not hooks:
            try:
                return step.run(values, feed_dict)
            except (tf.errors.UnavailableError, tf.errors.AbortedError):
                pass  # a ps is lost: the monitored session will notice it, too, and recover
        result = self._monitored.run(step.fetch[0] if values is None else values, feed_dict)
        self._due = time.monotonic() + 0.1
        return result if values is not None else None

    def _step_in(self, fetches) -> Step | None:
        """The step that `fetches` need, if any.

        Raises:
            ValueError: where they would take an update's number, or a token, without the update.
        """
        parts = tf.nest.flatten(fetches, expand_composites=True)  # a sparse tensor has three
        ops = [graphs.operation(self.graph, part) for part in parts]
        names = tuple(op.name for op in ops)
        if names not in self._found:
            needed = graphs.needed(ops)
            found = [step for step in self._steps if step.op in needed]
            if not found and any(op in needed for step in self._steps for op in step.numbers):
                raise ValueError(
                    f"sess.run({fetches}) needs the number of an update: run it together with the "
                    "step, as in sess.run([step, ...]), or the update is counted and not applied"
                )
            self._found[names] = found[0] if found else None
        return self._found[names]


class Notes(tf.train.SessionRunHook):
    """Lets the monitored session note the steps that it makes with hooks."""

    def __init__(self, steps: list[Step]):
        self._steps = steps

    def after_create_session(self, session, coord):
        for step in self._steps:
            step.prepare(session)

    def before_run(self, run_context):
        self._began = time.time()
        return tf.train.SessionRunArgs(self._steps[0].fetch[1])

    def after_run(self, run_context, run_values):
        self._steps[0].note(run_values.results, self._began, time.time())

    def end(self, session):
        for step in self._steps:
            step.flush()
