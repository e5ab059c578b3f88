"""The session that the training loop calls `sess`."""

import contextlib
import time
from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from common import data
from common.graph import aborts, walk
from common.record.words import ABORTED
from common.training.steps import Notes, Step

SOON = 0.25  # seconds until hooks see a step again
MANY = 20  # aborts in a row: then it is no accident


class Session:
    """What the loop calls `sess`: a monitored session that recognises the training step.

    `sess.run(step)` takes one step (or `--steps_per_execution` of them) and returns None.
    `sess.run([step, loss])` also takes a step, and returns the values. `sess.run` of anything that
    does not need the step takes none.

    TensorFlow's hooks take longer than a small step, so those of `session.training` see only one
    step every 0.25 s, but at least about 75 in a run: often enough to log, save and stop. The
    script's own hooks see every step.
    """

    def __init__(
        self,
        monitored: tf.train.MonitoredSession,
        steps: Sequence[Step],
        notes: Notes,
        again: Sequence[tf.Operation],
        between: int,
    ):
        """`again`: what an aborted step needs before the next one, such as a new token. `between`:
        at most this many steps go unseen between two that hooks see."""
        self._monitored, self._steps, self._notes = monitored, steps, notes
        self._again, self._between, self._unseen = list(again), between, 0
        self._of = {step.op: step for step in steps}
        self._found: dict[tuple[str, ...], Step | None] = {}
        self._due = 0.0
        self.should_stop, self.graph = monitored.should_stop, monitored.graph

    def run(self, fetches, feed_dict=None, options=None, run_metadata=None):
        """Like `tf.Session.run`.

        Raises:
            ValueError: if the call would take an update's number or a token without the update, or
                feeds several steps the same values.
        """
        more = feed_dict, options, run_metadata
        step = self._of.get(fetches) if isinstance(fetches, tf.Operation) else None
        wanted = None if step else fetches
        step = step or self._step_in(fetches)
        if step is None:
            return self._monitored.run_step_fn(
                lambda step_context: self._steps[0].session.run(fetches, *more)
            )
        if step.count > 1:
            if feed_dict:
                raise ValueError(
                    f"sess.run(step, feed_dict=...) with --steps_per_execution {step.count} would "
                    "feed all steps of the call the same values: leave --steps_per_execution out, "
                    "or let the graph draw the batches (data.pipeline)"
                )
            wanted = step.last(wanted)  # the values of the last of several steps
        for _ in range(MANY):
            try:
                return self._take(step, wanted, more)
            except aborts.CallAborted:
                print(ABORTED, flush=True)
            # Its row says whether it was counted. Either way the next step is a new one.
            self._notes.aborted()
            session = self._steps[0].session
            with contextlib.suppress(tf.errors.CancelledError):  # the run has been stopped
                session.run(self._again)
            if data.is_cut(session):
                if not data.start_again(session):
                    print("the abort ended the data set, which does not repeat", flush=True)
                    raise tf.errors.OutOfRangeError(None, None, data.END)
                print("the abort ended the data set: it starts again", flush=True)
        raise RuntimeError(f"TensorFlow aborted {MANY} calls in a row, and no task was lost")

    def _take(self, step: Step, wanted, more: Sequence):
        """One call of the step; hooks see it if they have seen none for some time."""
        first = step is self._steps[0]
        if not first or (self._unseen < self._between and time.monotonic() < self._due):
            self._unseen += first
            try:
                return step.run(wanted, more)
            except (tf.errors.UnavailableError, tf.errors.AbortedError):
                pass  # a ps is lost: the monitored session will notice it too, and recover
        values, _ = self._monitored.run([[] if wanted is None else wanted, step.ends], *more)
        self._due, self._unseen = time.monotonic() + SOON, 0
        return None if wanted is None else values

    def _step_in(self, fetches) -> Step | None:
        """The step that `fetches` need, if any.

        Raises:
            ValueError: if they would take an update's number, or a token, without the update.
        """
        parts = tf.nest.flatten(fetches, expand_composites=True)  # a sparse tensor has three parts
        ops = [walk.operation(self.graph, part) for part in parts]
        names = tuple(op.name for op in ops)
        if names not in self._found:
            needed = walk.needed(ops)
            found = [step for step in self._steps if step.op in needed]
            if not found and any(op in needed for step in self._steps for op in step.numbers):
                raise ValueError(
                    f"sess.run({fetches}) takes the number of an update, or a token: run it with "
                    "the step, as in sess.run([step, ...]); otherwise that update never happens"
                )
            self._found[names] = found[0] if found else None
        return self._found[names]
