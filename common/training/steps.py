"""Runs the steps of the training loop, measures them and writes the events."""

import functools
import json
import math
import time
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from common.record import closing, trace
from common.training import graphs, measure
from common.training.board import Board

SOON = 0.1  # seconds between reads of the rows; more if reading takes over a tenth of that


class Replica(NamedTuple):
    """What a step reports about one replica: a worker process, a thread or a tower."""

    step: tf.Operation
    loss: tf.Tensor
    number: tf.Tensor
    pulled_at: tf.Tensor | None = None
    sent: Sequence[tf.Tensor] = ()

    @graphs.scope("events")
    def rows(self, task, name: str) -> list[measure.Rows]:
        """Two rows of numbers per step: one where it computes, one on the ps that counts."""
        number, place = self.number, self.loss.device if task.hosts else ""
        pulled_at = number if self.pulled_at is None else self.pulled_at
        with tf.device(place):
            computed = measure.noted("computed", self.sent[0] if self.sent else number)
            inputs = {tensor.op for tensor in self.loss.op.inputs}
            if elastic := computed is not None and inputs.isdisjoint(graphs.needed([computed.op])):
                computed = tf.maximum(computed, measure.now([self.loss]))
            here = [self.loss, measure.noted("arrived", pulled_at), computed, elastic]
        times = measure.noted("read", pulled_at), measure.noted("counted", number)
        there = [number, pulled_at, *times, measure.noted("asked", number)]
        return [measure.Rows(here, place, f"{name}-here"),
                measure.Rows(there, number.device, f"{name}-there")]  # fmt: skip


class Step:
    """A step operation, and the events files of the replicas that it trains."""

    def __init__(self, task, first: int, replicas: Sequence[Replica]):
        """`first` is the index of the first replica; all replicas have the same `step`."""
        self.op = replicas[0].step
        self.numbers = [replica.number.op for replica in replicas]
        self._rows = [each.rows(task, f"worker-{k}") for k, each in enumerate(replicas, first)]
        puts = [rows.put for both in self._rows for rows in both]
        self.count = task.flags.steps_per_execution
        # Fetching the operations of a group on several devices, not the group, saves a message.
        parts = self.op.control_inputs if self.op.type == "NoOp" and not self.op.device else []
        parts = parts or [self.op]
        self.ends = [*parts, *puts]
        if self.count > 1:
            from common.training import several

            copy = several.copies(parts, puts, self.count)[-1]
            self.ends = several.of(copy, self.ends)
            self.last = functools.partial(several.of, copy)
        self._window = getattr(task.flags, "window", 1)
        self._local_step, self._first, self._said = 0, first, 0.0
        self._files = [closing.open_events(task.flags, first + k) for k in range(len(replicas))]
        self._unsaid: dict = {}  # the last event of the first replica, if it has no line yet
        self._boards = [Board(task.flags, first + k) for k in range(len(replicas))]

    def prepare(self, session: tf.Session) -> None:
        """Prepares for a new session, also after a recovery."""
        self.session = session
        self._call = session.make_callable(self.ends)
        self._read = session.make_callable([[rows.read for rows in both] for both in self._rows])
        self._read()  # discards what a lost session left
        for board in self._boards:
            board.open()
        self._calls, self._due = [], 0.0
        self._counted = [math.nan] * len(self._files)  # when each replica's last update was

    def run(self, fetches=None, more: Sequence = (None, None, None)):
        """Takes the step, or `--steps_per_execution` of them, without hooks. Returns the values of
        `fetches`, if any; `more` are the other arguments of `tf.Session.run`."""
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

    def note(self, began: float, ended: float) -> None:
        """Notes when a call of the session began and ended (NaN: it was aborted)."""
        self._calls.append((began, ended))
        if ended > self._due:
            self.write()

    def write(self, last: bool = False) -> None:
        """Reads the rows of past calls, and adds a line to the events for each step.

        Args:
            last: no more steps will come.

        Raises:
            tf.train.NanLossDuringTrainingError: if a loss is NaN.
        """
        calls, self._calls, diverged, began = self._calls, [], False, time.time()
        found = self._read()
        self._due = time.time() + max(SOON, 10 * (time.time() - began))
        for k, (file, both) in enumerate(zip(self._files, found)):
            events, over = [], math.nan
            for i, ((loss, arrived, computed, elastic), there) in enumerate(zip(*both)):
                call, at_call = divmod(i, self.count)
                began, ended = calls[call]
                number, pulled_at, (read, counted, asked) = int(there[0]), int(there[1]), there[2:]
                at = began if at_call == 0 else over
                wait = _known(read - asked, 0.0)  # for others, by the clock of the ps
                at += wait + min(wait, max(0.0, asked - at))  # the request was on its way meanwhile
                # Inside a call, the worker does not see when its push ends.
                over = _known(ended if at_call == self.count - 1 else math.nan, computed, counted)
                pulled = _known(arrived, at)
                # An elastic worker pushes before it computes: its push may arrive meanwhile.
                computed = over if elastic and counted < computed else _known(computed, over)
                event = {
                    "time": over, "local_step": self._local_step + (i + 1) * self._window,
                    "global_step": number + 1, "loss": float(loss),
                    "staleness": max(0, number - pulled_at), "pulled_at": pulled_at,
                    "gap": max(read - self._counted[k], 0.0), "out": counted - read,
                    "pull": max(0, pulled - at), "compute": max(0, computed - pulled),
                    "push": max(0, over - computed), "counted": counted,
                }  # fmt: skip
                events.append({key: _rounded(key, event[key]) for key in event})
                self._counted[k] = counted
                diverged |= math.isnan(loss)
            # Whole lines at once: so nobody reads half a line.
            file.write("".join(json.dumps(event) + "\n" for event in events))
            self._boards[k].note(events, last or diverged)
            if k == 0:
                self._unsaid = events[-1] if events else self._unsaid
        if self._unsaid and (last or time.time() > self._said + 1):  # once a second, to the log
            said = [self._unsaid[key] for key in ("global_step", "loss", "staleness")]
            print(trace.line(self._first, *said), flush=True)
            self._said, self._unsaid = time.time(), {}
        self._local_step += len(events) * self._window
        if diverged:
            raise tf.train.NanLossDuringTrainingError


def _known(*times: float) -> float:
    """The first time that is not NaN."""
    return next(time for time in times if time == time)


def _rounded(key: str, value: float) -> float | None:
    """Rounds times to microseconds; NaN (not measured) becomes None. A loss stays as it is."""
    return value if key == "loss" else None if math.isnan(value) else round(value, 6)


class Notes(tf.train.SessionRunHook):
    """Notes the steps that the monitored session takes with hooks."""

    def __init__(self, steps: list[Step]):
        self._steps = steps

    def after_create_session(self, session, coord):
        self._began = None
        for step in self._steps:
            step.prepare(session)

    def before_run(self, run_context):
        self._began, ends = time.time(), run_context.original_args.fetches[1]
        self._step = next(step for step in self._steps if step.ends is ends)

    def after_run(self, run_context, run_values):
        self._step.note(self._began, time.time())
        self._began = None

    def end(self, session):
        if self._began is not None:  # the last update came in the middle of a call
            self._step.note(self._began, math.nan)
        for step in self._steps:
            step.write(last=True)
