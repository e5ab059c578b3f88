"""The chief evaluates the global parameters on the test set."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from common import copies, data, fail
from common.graph.scope import scope
from common.record import metric
from common.training import events

POINTS = 50  # about this many evaluations in a run; more in a long one
SAMPLE = 1000  # examples


class Metric(NamedTuple):
    """A measure that is more than the mean over the test examples, or of which less is better.

    Attributes:
        values: one per example, [batch].
        of_mean: the measure, computed from their mean: `math.sqrt` if `values` are squared errors
            and the measure is their RMSE, `math.exp` for a perplexity.
        lower: whether less is better.
    """

    values: tf.Tensor
    of_mean: Callable[[float], float] = float
    lower: bool = False


class Schedule:
    """When to evaluate: after each `--evaluate_every` updates. Without this flag, about `POINTS`
    times, more in a long run, for at most a tenth of the time.

    With `--link_mbit`, it also uses at most about a sixtieth of the link, which all workers share;
    a thirtieth if the run ends at `--target_accuracy`.
    """

    def __init__(self, flags):
        self._every = getattr(flags, "evaluate_every", None)
        self._spacing = self._every or flags.steps / POINTS
        self._pause = 9.0
        if flags.link_mbit:
            # Among n workers that use the link all the time, the chief gets an n-th of it.
            share = 60 if _target(flags) is None else 30
            self._pause = max(self._pause, share / flags.workers)
        self._soon, self._due, self._next = 0.0, 0.0, 0.0

    def is_due(self, step: int) -> bool:
        if self._every:
            return step >= self._next
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
    """Evaluates on a sample of the test set during training, and on the whole set at the end.

    Attributes:
        sample: how many examples are enough during training.
        whole: how many there are.
    """

    @scope("evaluation")
    def __init__(
        self,
        task,
        params: list[tf.Variable],
        tables: Sequence,
        evaluate: Callable[..., dict[str, tf.Tensor | Metric]],
        test: tuple[np.ndarray, np.ndarray],
        reached: Callable[[tf.Session], None],
        count: tf.Tensor,
    ):
        """`tables`, `evaluate` and `test` are as in `session.training`. Calls `reached` with the
        session when the metric reaches its target. `count`: the global step that hooks read."""
        self._task, self._test, self._reached = task, test, reached
        x, labels = test
        self.whole = len(labels)
        with tf.device(task.device):
            self._x = tf.placeholder(x.dtype, [None, *x.shape[1:]])
            self._labels = tf.placeholder(labels.dtype, [None, *labels.shape[1:]])
            pull = copies.pull(params, tf.train.get_global_step())
            self._global_step = pull.count
            measured = evaluate([*pull.w, *tables], data.scaled(self._x), self._labels)
            self._measures = {f"test_{name}": each if isinstance(each, Metric) else Metric(each)
                              for name, each in measured.items()}  # fmt: skip
            _check(self._measures)
            self._sums = {name: tf.reduce_sum(tf.cast(each.values, tf.float32))
                          for name, each in self._measures.items()}  # fmt: skip
        self._metric = metric.key(self._measures)
        if self._metric != metric.ACCURACY and task.flags.target_accuracy is not None:
            fail(
                f"--target_accuracy: the metric is the {metric.name(self._measures)}: write "
                '"target": None and "target_accuracy": None into DEFAULTS, and use --target'
            )
        self._schedule, self._count = Schedule(task.flags), count
        self.sample = getattr(task.flags, "evaluate_on", SAMPLE)

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(self._count)

    def after_run(self, run_context, run_values):
        if not self._schedule.is_due(run_values.results):
            return
        began = time.time()
        found = self.measure(run_context.session, self.sample)
        self._schedule.note(found["global_step"], time.time() - began)
        if found["global_step"] and self._has_reached(found):
            found = self.measure(run_context.session)  # confirm it on the whole test set
            if self._has_reached(found):
                self._reached(run_context.session)
                run_context.request_stop()

    def _has_reached(self, found: dict) -> bool:
        target = _target(self._task.flags)
        if target is None:
            return False
        value = found[self._metric]
        return value <= target if self._measures[self._metric].lower else value >= target

    def measure(self, session: tf.Session, sample: int | None = None) -> dict:
        """Returns `global_step`, each measure and the number of examples; appends them to
        `evaluations.jsonl`."""
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
        for name, each in self._measures.items():
            found[name] = _of_mean(each, found[name])
        found["examples"] = len(labels)
        events.note_evaluation(self._task.flags.results, found)
        return found


def _of_mean(measure: Metric, mean: float) -> float:
    try:
        return measure.of_mean(mean)
    except OverflowError:  # math.exp of a loss that diverges
        return math.inf


def _target(flags) -> float | None:
    """What the metric has to reach: `--target_accuracy`, or `--target` for another metric."""
    accuracy = flags.target_accuracy
    return accuracy if accuracy is not None else getattr(flags, "target", None)


def _check(measures: Mapping[str, Metric]) -> None:
    """Raises ValueError unless `evaluate` has returned what it must, a number for each example."""
    if "test_loss" not in measures:
        raise ValueError("evaluate must also return loss")
    for name, (values, _, _) in measures.items():
        if values.shape.rank is not None and values.shape.rank != 1:
            raise ValueError(
                f"evaluate returns {name.removeprefix('test_')} with the shape {values.shape}: "
                "return a value for each example, [batch]; the session takes their mean over the "
                "test set"
            )
