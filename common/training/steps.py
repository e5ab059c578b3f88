"""Runs the steps of the training loop, and writes their events."""

import functools
import json
import math
import time
from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from common.graph.rows import read_all
from common.record import trace
from common.training import several
from common.training.measured import Call, Measured, Replica

SOON = 0.25  # seconds between reads of the rows; more if reading takes over a tenth of that


class Step:
    """A step operation, and the replicas that it trains."""

    def __init__(self, task, first: int, replicas: Sequence[Replica], shards: int = 1):
        """`first` is the index of the first replica; all replicas have the same `step`. `shards`:
        into how many the examples are divided."""
        self.replicas = replicas
        self.op = replicas[0].step
        self._measured = [Measured(task, k, each, shards) for k, each in enumerate(replicas, first)]
        self.numbers = [each.number for each in self._measured]
        self._rows = [part for each in self._measured for part in each.rows]
        puts = [part.put for part in self._rows]
        self.count = task.flags.steps_per_execution
        # Fetching the operations of a group on several devices, not the group, saves a message.
        parts = [self.op]
        if self.op.type == "NoOp" and not self.op.device and self.op.control_inputs:
            parts = self.op.control_inputs
        self.ends = [task.first, *parts, *puts]
        if self.count > 1:
            copy = several.copies(parts, puts, self.count)[-1]
            self.ends = several.of(copy, self.ends)
            self.last = functools.partial(several.of, copy)
        self._calls: list[Call] = []
        self._due = 0.0  # when to read the rows
        self._say_at = 0.0
        self._unsaid: dict = {}  # the first replica's last event, if it has no line yet

    def prepare(self, session: tf.Session, replaced: bool) -> None:
        """Prepares for a new session. If it `replaced` a lost one, the rows on the ps are gone, and
        those here belong to steps that nobody can tell any more."""
        self.session = session
        session.steps |= set(self.ends)
        self._call = session.make_callable(self.ends)
        if replaced:
            self._calls = []
            for part in self._rows:
                part.forget(session)
            for each in self._measured:
                each.counted_at = None
                each.board.open()
        self._due = 0.0

    def run(self, fetches=None, more: Sequence = (None, None, None)):
        """Takes the step, or `--steps_per_execution` of them, without hooks. Returns the values of
        `fetches`, if any; `more` are the other arguments of `tf.Session.run`."""
        began, ended, values = time.time(), None, None
        try:
            if fetches is None and not any(more):
                self._call()
            else:
                values, _ = self.session.run([[] if fetches is None else fetches, self.ends], *more)
            ended = time.time()
        finally:
            self.note(Call(began, ended))
        return values

    def note(self, call: Call) -> None:
        """Notes a call of the session."""
        self._calls.append(call)
        if call.ended is not None and call.ended > self._due:
            self.write()

    def write(self, last: bool = False) -> None:
        """Reads the rows of past calls, and adds a line to the events for each step.

        Args:
            last: no more steps will come.

        Raises:
            tf.train.NanLossDuringTrainingError: if a loss is NaN.
        """
        calls, self._calls, diverged, began = self._calls, [], False, time.time()
        left = iter(read_all(self._rows, self.session))
        for k, each in enumerate(self._measured):
            events = list(each.events(calls, self.count, [next(left) for _ in each.rows]))
            # Whole lines at once: so nobody reads half a line.
            each.file.write("".join(json.dumps(event) + "\n" for event in events))
            diverged |= any(math.isnan(event["loss"]) for event in events)
            each.board.note(events, last or diverged)
            if k == 0 and events:
                self._unsaid = events[-1]
        self._due = time.time() + max(SOON, 10 * (time.time() - began))
        if self._unsaid and (last or time.time() > self._say_at):  # once a second, to the log
            said = [self._unsaid[key] for key in ("global_step", "loss", "staleness")]
            print(trace.line(self._measured[0].worker, *said), flush=True)
            self._say_at, self._unsaid = time.time() + 1, {}
        if diverged:
            raise tf.train.NanLossDuringTrainingError


class Notes(tf.train.SessionRunHook):
    """Notes the steps that the monitored session takes with hooks."""

    def __init__(self, steps: Sequence[Step], creator):
        """`creator` knows whether a session has replaced a lost one."""
        self._steps, self._creator = steps, creator
        self._began: float | None = None

    def after_create_session(self, session, coord):
        self.aborted()  # in the session before; if that lost a ps, `prepare` forgets it
        for step in self._steps:
            step.prepare(session, self._creator.replaced)

    def before_run(self, run_context):
        ends = run_context.original_args.fetches[1]
        self._step = next(step for step in self._steps if step.ends is ends)
        self._began = time.time()

    def after_run(self, run_context, run_values):
        self._step.note(Call(self._began, time.time()))
        self._began = None

    def aborted(self) -> None:
        """The call of the step did not come back, but its session can still be used."""
        if self._began is not None:
            self._step.note(Call(self._began, None))
            self._began = None

    def end(self, session):
        self.aborted()  # if the last update came in the middle of a call
        for step in self._steps:
            step.write(last=True)
