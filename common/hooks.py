"""Two hooks that TensorFlow does not bring: every step into a file, and the test accuracy."""

import json
import math
import os
import time
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from common import copies, data, models, results
from common.chain import Chain


class Events(tf.train.SessionRunHook):
    """Writes one line per step into `events-worker-K.jsonl`; `results.py` says what is in it."""

    def __init__(
        self, task, step: tf.Operation, replicas: Sequence[tuple], first: int | None = None
    ):
        """
        Args:
            task: who this process is.
            step: what the training loop runs.
            replicas: `measured`, as `session.training` has it, of each replica that takes part in
                a step: one, unless it has several towers.
            first: whose events these are, of the first replica; without it, the task's.
        """
        first = task.index if first is None else first
        groups = [each for replica in replicas for each in self._tensors(task, *replica)]
        self._chain = Chain(step, groups, f"worker-{first}")
        # In one call, a ps that makes the update alone goes straight on to the next pull.
        places = {op.device for op in (replicas[0][1].op, step, *step.control_inputs)}
        self._straight = len(places) == 1 and "/job:ps" in places.pop()
        self._window = getattr(task.flags, "window", 1)
        self._local_step = 0
        again = int(os.environ.get("TASK_RESTARTS", 0)) > 0
        paths = [results.events_file(task.flags.results, first + k) for k in range(len(replicas))]
        self._files = [open(path, "a" if again else "w", encoding="utf-8") for path in paths]
        self._lines: list[list[str]] = [[] for _ in replicas]
        self._flushed = 0.0

    @staticmethod
    def _tensors(task, loss, number, pulled_at, milestones):
        def clock(after):  # as noted for the first of these tensors, or when all are there
            noted = tf.get_collection(copies.noted_at(after[0]))
            with tf.control_dependencies(after):
                return noted[0] if noted else tf.timestamp()

        with tf.device(task.device):
            local = [*map(clock, milestones), tf.identity(loss)]
        with tf.device(number.device):
            counts = [number, pulled_at, clock([pulled_at]), clock([number])]
        return local, counts

    def after_create_session(self, session, coord):
        """Also after a recovery."""
        self._chain.prepare(session)
        self._pushed = [None] * len(self._lines)  # when, of each replica

    def before_run(self, run_context):
        self._began = time.time()
        return tf.train.SessionRunArgs(self._chain.values)

    def after_run(self, run_context, run_values):
        self._note([run_values.results])

    def run(self) -> None:
        """Steps without hooks, one or several in one call, that are noted all the same."""
        self._began, steps = time.time(), []
        try:
            steps.extend(self._chain.run())
        finally:
            self._note(steps)

    def _note(self, steps):
        """`steps`: of each, what was fetched."""
        now = time.time()
        local_step = self._local_step + self._window
        for k, lines in enumerate(self._lines):
            began = self._began
            for i, fetched in enumerate(steps):
                (*before, computed, loss), counts = fetched[2 * k :][:2]
                number, pulled_at = counts[:2].astype(int)
                read, pushed = counts[2:]
                gap = None if self._pushed[k] is None else round(max(0, read - self._pushed[k]), 6)
                if i and self._straight:
                    gap = 0.0
                self._pushed[k] = pushed
                if len(before) == 2:
                    began = min(before)
                pulled = before[-1] if before else began
                over = now
                if i + 1 < len(steps):  # what follows is the way there and, with the next, back
                    way = steps[i + 1][2 * k][0] - computed
                    over = computed + (0, way / 2, min(way, pulled - began))[len(before)]
                if not before:  # nothing travels: what follows the gradient is computing, too
                    computed = over
                lines.append(
                    f'{{"time": {over:.6f}, "local_step": {local_step + i * self._window}, '
                    f'"global_step": {number + 1}, "loss": {json.dumps(float(loss))}, '
                    f'"staleness": {number - pulled_at}, "pulled_at": {pulled_at}, '
                    f'"gap": {json.dumps(gap)}, "out": {pushed - read:.6f}, '
                    f'"pull": {max(0, pulled - began):.6f}, "compute": {computed - pulled:.6f}, '
                    f'"push": {over - computed:.6f}}}\n'
                )
                began = over
        self._local_step += self._window * len(steps)
        if any(math.isnan(local[-1]) for fetched in steps for local in fetched[::2]):
            raise tf.train.NanLossDuringTrainingError  # also between the steps that hooks see
        if now - self._flushed > 0.2:
            self._flush(now)

    def end(self, session):
        self._flush(time.time())

    def _flush(self, now):
        """Whole lines in one write: a reader, or a kill, never finds half a line."""
        for file, lines in zip(self._files, self._lines):
            file.write("".join(lines))
            file.flush()
            lines.clear()
        self._flushed = now


class Beside(tf.train.SessionRunHook):
    """The events of further threads, which run beside the monitored loop in the same session."""

    def __init__(self, events: list[Events]):
        self._events = events

    def after_create_session(self, session, coord):
        for each in self._events:
            each.after_create_session(session, coord)

    def end(self, session):
        for each in self._events:
            each.end(session)


class Evaluation(tf.train.SessionRunHook):
    """The chief measures the global parameters on the test set now and then.

    Little of its time goes there: a large test set is sampled (every k-th example) until
    the end.
    """

    def __init__(self, task, params: list[tf.Variable], reached: Callable[[tf.Session], None]):
        """
        Args:
            task: this process.
            params: the global parameters.
            reached: called with the raw session when `--target_accuracy` is reached.
        """
        self._task, self._reached = task, reached
        x, labels = data.load(task.flags, "test")
        self._test = x, labels
        with tf.device(task.device):
            self._x = tf.placeholder(tf.float32, [None, *x.shape[1:]])
            self._labels = tf.placeholder(tf.int64, [None])
            logits = models.logits(task.flags.model, copies.pull(params), self._x)
            right = tf.equal(tf.argmax(logits, 1), self._labels)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
                labels=self._labels, logits=logits
            )
            self._sums = [tf.reduce_sum(tf.cast(right, tf.float32)), tf.reduce_sum(losses)]
        self._global_step = tf.train.get_global_step().read_value()
        self._due = 0.0

    def after_run(self, run_context, run_values):
        began = time.time()
        if began < self._due:
            return
        step, accuracy, _ = self.measure(run_context.session, sample=1000)
        took = 0.0 if self._due == 0 else time.time() - began  # the first one also sets up a graph
        self._due = time.time() + max(0.1, min(2.0, 50 * took))
        target = self._task.flags.target_accuracy
        if target is not None and accuracy >= target and step > 0:
            _, accuracy, _ = self.measure(run_context.session)  # the whole test set, to be sure
            if accuracy >= target:
                self._reached(run_context.session)
                run_context.request_stop()

    def measure(self, session: tf.Session, sample: int | None = None) -> tuple[int, float, float]:
        """(global step, accuracy, mean loss) of the global parameters, also noted in a file."""
        x, labels = self._test
        stride = max(1, math.ceil(len(labels) / sample)) if sample else 1
        x, labels = x[::stride], labels[::stride]
        step = int(session.run(self._global_step))
        sums = np.zeros(2)
        for i in range(0, len(labels), 1000):
            part = slice(i, i + 1000)
            feed = {self._x: data.scaled(x[part]), self._labels: labels[part]}
            sums += session.run(self._sums, feed)
        accuracy, loss = (float(value) for value in sums / len(labels))
        results.note_evaluation(self._task.flags.results, step, accuracy, loss)
        return step, accuracy, loss
