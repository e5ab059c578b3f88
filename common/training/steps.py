"""The steps of the training loop: run one by one, each noted in the events."""

import json
import math
import os
import time
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from common.training import clocks, graphs, results
from common.training.rows import Rows

SOON = 0.1  # seconds until rows are read, and until hooks see a step again


class Replica(NamedTuple):
    """What a step reports of one replica: a worker process, a thread or a tower."""

    step: tf.Operation
    loss: tf.Tensor
    number: tf.Tensor
    pulled_at: tf.Tensor | None = None

    def rows(self, task, name: str) -> list[Rows]:
        """Two rows of numbers for each step: one on this task, one on the ps that counts."""
        number = self.number
        pulled_at = number if self.pulled_at is None else self.pulled_at
        with tf.device(task.device):
            computed = clocks.noted("computed", number)
            if computed is not None:  # an elastic worker pushes first and computes then
                computed = tf.maximum(computed, clocks.now([self.loss]))
            here = [self.loss, clocks.noted("arrived", pulled_at), computed]
        times = clocks.noted("read", pulled_at), clocks.noted("counted", number)
        there = [number, pulled_at, *times, clocks.noted("asked", number)]
        return [Rows(here, task.device, f"{name}-here"),
                Rows(there, number.device, f"{name}-there")]  # fmt: skip


class Step:
    """One step operation, and the events files of the replicas that it trains.

    `results.py` says what a line of events holds.
    """

    def __init__(self, task, first: int, replicas: Sequence[Replica]):
        """`first` is the index of the first replica; all of them have the same `step`."""
        self.op = replicas[0].step
        self.numbers = [replica.number.op for replica in replicas]
        names = [f"worker-{first + k}" for k in range(len(replicas))]
        self._rows = [replica.rows(task, name) for replica, name in zip(replicas, names)]
        puts = [rows.put for both in self._rows for rows in both]
        self.count = task.flags.steps_per_execution
        self._last = {}
        # A group of operations on several devices is run as its parts, which spares a message.
        parts = self.op.control_inputs if self.op.type == "NoOp" and not self.op.device else []
        parts = parts or [self.op]
        self.ends = [*parts, *puts]
        if self.count > 1:
            from common.training.several import copies

            self._last = copies(parts, puts, self.count)[-1]
            self.ends = [self._last[end] for end in self.ends]
        self._window = getattr(task.flags, "window", 1)
        self._local_step = 0
        mode = "a" if int(os.environ.get("TASK_RESTARTS", 0)) else "w"
        paths = [results.events_file(task.flags.results, first + k) for k in range(len(replicas))]
        self._files = [open(path, mode, encoding="utf-8") for path in paths]

    def prepare(self, session: tf.Session) -> None:
        """For a new session, also after a recovery."""
        self.session = session
        self._call = session.make_callable(self.ends)
        self._read = session.make_callable([[rows.read for rows in both] for both in self._rows])
        self._read()  # what a lost session has left
        self._calls: list[tuple[float, float]] = []
        self._due = 0.0
        self._counted = [math.nan] * len(self._files)  # when, the last update of each replica

    def run(self, fetches=None, more: Sequence = (None, None, None)):
        """Makes the step, or `--steps_per_execution` of them, without hooks.

        Args:
            fetches: what else is wanted.
            more: `feed_dict`, `options` and `run_metadata` as of `tf.Session.run`.

        Returns:
            The values of `fetches`, if there are any; of several steps, of the last.
        """
        began, ended = time.time(), math.nan
        try:
            if fetches is None and not any(more):
                self._call()
                values = None
            else:
                values, _ = self.session.run([[] if fetches is None else fetches, self.ends], *more)
            ended = time.time()
        finally:
            self.note(began, ended)
        return values

    def last(self, fetches):
        """`fetches` of the last of several steps in a call."""

        def of_last(fetch):
            element = self.op.graph.as_graph_element(fetch)
            op = graphs.operation(self.op.graph, fetch)
            copy = self._last.get(op, op)
            return copy if op is element else copy.outputs[element.value_index]

        if fetches is None or self.count == 1:
            return fetches
        return tf.nest.map_structure(of_last, fetches, expand_composites=True)

    def note(self, began: float, ended: float) -> None:
        """Notes a call of the session, which ended (NaN: broke off) with the last of its steps."""
        self._calls.append((began, ended))
        if ended > self._due:
            self.write()

    def write(self) -> None:
        """Reads what the calls have left, and adds a line to the events for each step.

        Raises:
            tf.train.NanLossDuringTrainingError: when a loss is not a number any more.
        """
        self._due = time.time() + SOON
        calls, self._calls, diverged = self._calls, [], False
        for k, (file, both) in enumerate(zip(self._files, self._read())):
            lines, over = [], math.nan
            for i, ((loss, arrived, computed), there) in enumerate(zip(*both)):
                call, at_call = divmod(i, self.count)
                began, ended = calls[call]
                number, pulled_at = map(int, there[:2])
                read, counted, asked = there[2:]
                at = began if at_call == 0 else over
                at += _known(read - asked, 0.0)  # a wait for others, by the clock of the ps
                # Inside a call, the worker does not see when its push is over.
                over = ended if at_call == self.count - 1 else math.nan
                over = _known(over, computed, counted)
                pulled, computed = _known(arrived, at), _known(computed, over)
                event = {
                    "time": over, "local_step": self._local_step + (i + 1) * self._window,
                    "global_step": number + 1, "loss": float(loss),
                    "staleness": max(0, number - pulled_at), "pulled_at": pulled_at,
                    "gap": max(read - self._counted[k], 0.0), "out": counted - read,
                    "pull": max(0, pulled - at), "compute": max(0, computed - pulled),
                    "push": max(0, over - computed),
                }  # fmt: skip
                lines.append(_line(event))
                self._counted[k] = counted
                diverged |= math.isnan(loss)
            file.write("".join(lines))  # whole lines at once: nobody ever finds half a line
            file.flush()
        self._local_step += len(lines) * self._window
        if diverged:
            raise tf.train.NanLossDuringTrainingError


def _known(*times: float) -> float:
    """The first that is not NaN."""
    return next(time for time in times if time == time)


def _line(event: dict) -> str:
    """As JSON, times to the microsecond; what was not measured (NaN) is null."""
    rounded = {key: value if key == "loss" else round(value, 6) for key, value in event.items()}
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

    def run(self, fetches, feed_dict=None, options=None, run_metadata=None):
        """As `tf.Session.run`."""
        more = feed_dict, options, run_metadata
        step = self._of.get(fetches) if isinstance(fetches, tf.Operation) else None
        wanted = None if step else fetches
        step = step or self._step_in(fetches)
        if step is None:
            return self._monitored.run_step_fn(
                lambda step_context: self._steps[0].session.run(fetches, *more)
            )
        wanted = step.last(wanted)
        if step is not self._steps[0] or not (self._every or time.monotonic() > self._due):
            try:
                return step.run(wanted, more)
            except (tf.errors.UnavailableError, tf.errors.AbortedError):
                pass  # a ps is lost: the monitored session will notice it, too, and recover
        values, _ = self._monitored.run([[] if wanted is None else wanted, step.ends], *more)
        self._due = time.monotonic() + SOON
        return None if wanted is None else values

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
        self._began = None
        for step in self._steps:
            step.prepare(session)

    def before_run(self, run_context):
        self._began = time.time()

    def after_run(self, run_context, run_values):
        self._steps[0].note(self._began, time.time())
        self._began = None

    def end(self, session):
        if self._began is not None:  # the last update came in the middle of a call
            self._steps[0].note(self._began, math.nan)
        for step in self._steps:
            step.write()
