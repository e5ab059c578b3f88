"""Runs the steps of the training loop, and writes their events.

What a step has measured is on the ps, and over a slow link to read it takes as long as a part of
the next step. So a thread reads it meanwhile: where all workers wait for the last one, they would
wait for its reading, too.
"""

import functools
import json
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import tensorflow.compat.v1 as tf

from common.graph import rows
from common.record import trace
from common.training import several
from common.training.measured import Call, Measured, Replica

SOON = 0.25  # seconds between two reads of the rows; more if a read takes over a tenth of that


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
        self._left: list[list] = [[] for _ in self._rows]  # rows of calls that have no events yet
        self._reading: Future | None = None
        self._due = 0.0  # when to read the rows
        self._say_at = 0.0
        self._unsaid: dict = {}  # the first replica's last event, if it has no line yet

    def prepare(self, session: tf.Session, replaced: bool) -> None:
        """Prepares for a new session. If it `replaced` a lost one, the rows on the ps are gone, and
        those here belong to steps that nobody can tell any more."""
        self.session = session
        session.steps |= set(self.ends)
        self._call = session.make_callable(self.ends)
        self._reading, self._prepared = None, False  # what was read is of another session
        if replaced:
            self._calls, self._left = [], [[] for _ in self._rows]
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
        if call.ended is None or call.ended < self._due:
            return
        if self._reading is None:
            fetches, feeds = rows.wanted(self._rows)
            self._reading = _meanwhile(functools.partial(self.session.run, fetches, feeds))
        elif self._reading.done():
            # Which rows has an aborted call left? That can be told if nothing is under way.
            self._write(any(each.ended is None for each in self._calls))

    def write(self, last: bool = False) -> None:
        """Reads the rows of all past calls, and adds a line to the events for each step.

        Args:
            last: no more steps will come.

        Raises:
            tf.train.NanLossDuringTrainingError: if a loss is NaN.
        """
        self._write(True, last)

    def _write(self, whole: bool, last: bool = False) -> None:
        """`whole`: of all past calls, or of those whose rows have been read."""
        if self._reading:
            reading, self._reading = self._reading, None
            values, seconds = reading.result()
            self._take(rows.taken(self._rows, values))
            # In a session's first read, TensorFlow also prepares its graph.
            self._due = time.time() + max(SOON, 10 * seconds * self._prepared)
            self._prepared = True
        if whole:
            self._take(rows.read_all(self._rows, self.session))
        ready = None if whole else min(len(each) // self.count for each in self._left)
        calls = self._calls[:ready]
        self._calls = self._calls[len(calls) :]
        ends = [len(each) if whole else self.count * len(calls) for each in self._left]
        found = [each[:end] for each, end in zip(self._left, ends)]
        self._left = [each[end:] for each, end in zip(self._left, ends)]
        left, diverged = iter(found), False
        for k, each in enumerate(self._measured):
            events = list(each.events(calls, self.count, [next(left) for _ in each.rows]))
            # Whole lines at once: so nobody reads half a line.
            each.file.write("".join(json.dumps(event) + "\n" for event in events))
            diverged |= any(math.isnan(event["loss"]) for event in events)
            each.board.note(events, last or diverged)
            if k == 0 and events:
                self._unsaid = events[-1]
        if self._unsaid and (last or time.time() > self._say_at):  # once a second, to the log
            said = [self._unsaid[key] for key in ("global_step", "loss", "staleness")]
            print(trace.line(self._measured[0].worker, *said), flush=True)
            self._say_at, self._unsaid = time.time() + 1, {}
        if diverged:
            raise tf.train.NanLossDuringTrainingError

    def _take(self, found: list[list]) -> None:
        self._left = [left + new for left, new in zip(self._left, found, strict=True)]


def _meanwhile(work: Callable) -> Future:
    """Does the work in a thread, which does not keep the process from ending. Its result is what
    `work` returns, and the seconds that this took."""
    future: Future = Future()

    def run():
        began = time.time()
        try:
            result = work()
            future.set_result((result, time.time() - began))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


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
