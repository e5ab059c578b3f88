"""The chief evaluates the global parameters on the test set."""

import math
import time
from collections.abc import Callable, Mapping

import numpy as np
import tensorflow.compat.v1 as tf

from common import copies, data
from common.graph.scope import scope
from common.training import events

POINTS = 50  # about this many evaluations in a run; more in a long one


class Schedule:
    """When to evaluate: about `POINTS` times, more in a long run, for at most a tenth of the time.

    With `--link_mbit`, it also uses at most about a sixtieth of the link, which all workers share;
    a thirtieth if the run ends at `--target_accuracy`.
    """

    def __init__(self, flags):
        self._spacing = flags.steps / POINTS
        self._pause = 9.0
        if flags.link_mbit:
            # Among n workers that use the link all the time, the chief gets an n-th of it.
            share = 60 if flags.target_accuracy is None else 30
            self._pause = max(self._pause, share / flags.workers)
        self._soon, self._due, self._next = 0.0, 0.0, 0.0

    def is_due(self, step: int) -> bool:
        now = time.time()
        return now >= self._soon and (now >= self._due or step >= self._next)

    def note(self, step: int, took: float) -> None:
        """An evaluation after `step` updates, which took `took` seconds, has just ended."""
        if self._due == 0:
            took = 0.0  # the first one includes set-up
        self._soon = time.time() + self._pause * took
        self._due = time.time() + max(0.1, min(2.0, 50 * took), 10 * took)
        self._next = (step // self._spacing + 1) * self._spacing  # even if calls are rare


class Evaluation(tf.train.SessionRunHook):
    """Evaluates on a sample of the test set during training, and on the whole set at the end."""

    @scope("evaluation")
    def __init__(
        self,
        task,
        params: list[tf.Variable],
        evaluate: Callable[..., dict[str, tf.Tensor]],
        test: tuple[np.ndarray, np.ndarray],
        reached: Callable[[tf.Session], None],
        count: tf.Tensor,
    ):
        """`evaluate` and `test` are as in `session.training`. Calls `reached` with the session when
        the test accuracy reaches `--target_accuracy`. `count`: the global step that hooks read."""
        self._task, self._params, self._test, self._reached = task, params, test, reached
        x, labels = test
        with tf.device(task.device):
            self._x = tf.placeholder(x.dtype, [None, *x.shape[1:]])
            self._labels = tf.placeholder(labels.dtype, [None, *labels.shape[1:]])
            pull = copies.pull(params, tf.train.get_global_step())
            self._global_step = pull.count
            measured = evaluate(pull.w, data.scaled(self._x), self._labels)
            _check(measured)
            self._sums = {
                f"test_{name}": tf.reduce_sum(tf.cast(values, tf.float32))
                for name, values in measured.items()
            }
        self._schedule, self._count = Schedule(task.flags), count

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(self._count)

    def after_run(self, run_context, run_values):
        if not self._schedule.is_due(run_values.results):
            return
        began = time.time()
        found = self.measure(run_context.session, sample=1000)
        self._schedule.note(found["global_step"], time.time() - began)
        target = self._task.flags.target_accuracy
        if target is not None and found["test_accuracy"] >= target and found["global_step"] > 0:
            found = self.measure(run_context.session)  # confirm it on the whole test set
            if found["test_accuracy"] >= target:
                self._reached(run_context.session)
                run_context.request_stop()

    def measure(self, session: tf.Session, sample: int | None = None) -> dict:
        """Returns `global_step` and each measure's mean; appends them to `evaluations.jsonl`."""
        x, labels = self._test
        stride = max(1, math.ceil(len(labels) / sample)) if sample else 1
        x, labels = x[::stride], labels[::stride]
        found = dict.fromkeys(self._sums, 0.0)
        for i in range(0, len(labels), 1000):
            part = slice(i, i + 1000)
            feed = {self._x: x[part], self._labels: labels[part]}
            values, step = session.run([self._sums, self._global_step], feed)
            found.setdefault("global_step", int(step))
            for name, value in values.items():
                found[name] += float(value) / len(labels)
        events.note_evaluation(self._task.flags.results, found)
        return found


def _check(measured: Mapping[str, tf.Tensor]) -> None:
    """Raises ValueError unless `evaluate` has returned what it must, a number for each example."""
    if missing := {"accuracy", "loss"} - set(measured):
        raise ValueError(f"evaluate must also return {' and '.join(sorted(missing))}")
    for name, values in measured.items():
        if values.shape.rank is not None and values.shape.rank != 1:
            raise ValueError(
                f"evaluate returns {name} with the shape {values.shape}: return a value for each "
                "example, [batch]; the session takes their mean over the test set"
            )
