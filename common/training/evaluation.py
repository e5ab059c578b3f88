"""The chief evaluates the global parameters on the test set, or on a validation set."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import tensorflow.compat.v1 as tf

from common import copies, data, fail
from common.graph.scope import scope
from common.record import metric
from common.records import Metric
from common.training import events
from common.training.best import Best

POINTS = 50  # about this many evaluations in a run; more in a long one
SAMPLE = 1000  # examples


class Schedule:
    """When to evaluate: after each `--evaluate_every` updates. Without this flag, about `POINTS`
    times, more in a long run, for at most a tenth of the time. With `--patience`, which counts
    evaluations, `POINTS` times.

    With `--link_mbit`, it also uses at most about a sixtieth of the link, which all workers share;
    a thirtieth if the run ends at `--target_accuracy`.
    """

    def __init__(self, flags):
        self._every = getattr(flags, "evaluate_every", None)
        if getattr(flags, "patience", None):
            self._every = self._every or max(1, flags.steps // POINTS)
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
    """Evaluates on a sample during training, and on the whole test set at the end.

    During training, that is the validation set, if there is one, otherwise the test set. Each
    evaluation pulls the parameters once, so all its examples see those of one moment.
    """

    @scope("evaluation")
    def __init__(
        self,
        task,
        params: list[tf.Variable],
        tables: Sequence,
        evaluate: Callable[..., dict[str, tf.Tensor | Metric]],
        test: tuple[np.ndarray, np.ndarray],
        validation: tuple[np.ndarray, np.ndarray] | None,
        reached: Callable[[tf.Session], None],
        count: tf.Tensor,
    ):
        """`tables`, `evaluate`, `test` and `validation` are as in `session.training`. Calls
        `reached` with the session when it is time to stop. `count`: the global step that hooks
        read."""
        self._task, self._test, self._validation = task, test, validation
        self._reached, self._count = reached, count
        x, labels = test
        for kind, each in {"test": test, "validation": validation}.items():
            if each is not None and not len(each[1]):
                raise ValueError(f"the {kind} set of session.training has no examples")
        keeps = getattr(task.flags, "patience", None) is not None
        pulled = [*params, *(_others(params, tables, validation) if keeps else [])]
        with tf.device(task.device):
            self._x = tf.placeholder(x.dtype, [None, *x.shape[1:]])
            self._labels = tf.placeholder(labels.dtype, [None, *labels.shape[1:]])
            pull = copies.pull(pulled, tf.train.get_global_step())
            here = copies.local(pulled)
            take = [copy.assign(value) for copy, value in zip(here, pull.w, strict=True)]
            self._take = [pull.count, *[each.op for each in take]]
            self.params = here[: len(params)]
            w = [copy.read_value() for copy in self.params]
            measured = evaluate([*w, *tables], data.scaled(self._x), self._labels)
            self._measures = {name: each if isinstance(each, Metric) else Metric(each)
                              for name, each in measured.items()}  # fmt: skip
            _check(self._measures)
            self._sums = {name: tf.reduce_sum(tf.cast(each.values, tf.float32))
                          for name, each in self._measures.items()}  # fmt: skip
        found = {f"test_{name}": None for name in self._measures}
        self._metric = metric.key(found).removeprefix("test_")
        if self._metric != "accuracy" and task.flags.target_accuracy is not None:
            fail(
                f"--target_accuracy: the metric is the {metric.name(found)}: write "
                '"target": None and "target_accuracy": None into DEFAULTS, and use --target'
            )
        self._schedule = Schedule(task.flags)
        self._sample = getattr(task.flags, "evaluate_on", None if keeps else SAMPLE)
        self._best = None
        if keeps:
            what = {
                "metric": self._metric,
                "lower": self._measures[self._metric].lower,
                "examples": len(self._chosen(validation, self._sample)[1]),
            }
            self._best = Best(task.flags, pulled, here, what)

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(self._count)

    def after_run(self, run_context, run_values):
        if not self._schedule.is_due(run_values.results):
            return
        began, session = time.time(), run_context.session
        found = self._measure(session, self._sample)
        count = found["global_step"]
        self._schedule.note(count, time.time() - began)
        worse = self._best.look(session, count, found[metric.key(found)]) if self._best else 0
        over = self._best is not None and worse >= self._task.flags.patience
        if over:
            print(f"> [{self._task.name}] update {count}: no better {metric.name(found)} for "
                  f"{worse} evaluations, so the run ends", flush=True)  # fmt: skip
        elif count and self._has_reached(found):  # confirm it on all examples
            over = self._has_reached(self._measure(session))
        if over:
            self._reached(session)
            run_context.request_stop()

    def last(self, session: tf.Session) -> dict:
        """Evaluates the final parameters on the sample, if that is not the whole test set, and then
        on the test set; with `--patience`, the best ones. `params` hold these then. Returns what
        the last line of `evaluations.jsonl` says."""
        made = None
        if self._validation or (self._sample or math.inf) < len(self._test[1]):
            made = self._measure(session, self._sample)  # to compare with those before
        best = None
        if self._best:
            self._best.look(session, made["global_step"], made[metric.key(made)])
            best = self._best.restore(session)
        if best is None:
            return self._measure(session, during=False)
        more = {"best_step": best}
        return self._measure(session, during=False, count=made["global_step"], more=more)

    def _has_reached(self, found: dict) -> bool:
        target = _target(self._task.flags)
        if target is None:
            return False
        value = found[metric.key(found)]
        return value <= target if self._measures[self._metric].lower else value >= target

    @staticmethod
    def _chosen(part: tuple[np.ndarray, np.ndarray], sample: int | None) -> tuple:
        """About `sample` examples of a set, evenly spread; None: all."""
        stride = max(1, math.ceil(len(part[1]) / sample)) if sample else 1
        return part[0][::stride], part[1][::stride]

    def _measure(
        self,
        session: tf.Session,
        sample: int | None = None,
        during: bool = True,
        count: int | None = None,
        more: Mapping = MappingProxyType({}),
    ) -> dict:
        """Returns `global_step`, each measure, the number of examples and `more`; appends them to
        `evaluations.jsonl`.

        Args:
            session: a session.
            sample: about how many examples; default: all.
            during: during training, so on the validation set if there is one.
            count: do not pull, since `params` hold what to evaluate; this many updates were made.
            more: what else to note.
        """
        kind = "validation" if during and self._validation else "test"
        part = self._validation if kind == "validation" else self._test
        x, labels = self._chosen(part, sample)
        if count is None:
            count = int(session.run(self._take)[0])
        means = dict.fromkeys(self._sums, 0.0)
        for i in range(0, len(labels), 1000):
            part = slice(i, i + 1000)
            feed = {self._x: x[part], self._labels: labels[part]}
            for name, value in session.run(self._sums, feed).items():
                means[name] += float(value) / len(labels)
        found = {f"{kind}_{name}": _of_mean(each, means[name])
                 for name, each in self._measures.items()}  # fmt: skip
        found |= {"global_step": count, "examples": len(labels), **more}
        events.note_evaluation(self._task.flags, found)
        return found


def _others(params: Sequence, tables: Sequence, validation) -> list[tf.Variable]:
    """The other global variables, such as an optimizer's slots, which a checkpoint needs, too.

    Raises:
        ValueError: if the best parameters cannot be chosen, or not be kept.
    """
    if validation is None:
        raise ValueError(
            "--patience needs session.training(..., validation=(x, labels)): parameters that are "
            "the best ones on the test set look better there than they are"
        )
    if tables:
        raise ValueError(
            "--patience copies all parameters to the chief, but tables= may be too large for that: "
            "write a hook that stops the run, and use checkpoint_every"
        )
    known = {id(each) for each in [*params, tf.train.get_global_step()]}
    return [each for each in tf.global_variables() if id(each) not in known]


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
    if "loss" not in measures:
        raise ValueError("evaluate must also return loss")
    for name, (values, _, _) in measures.items():
        if values.shape.rank is not None and values.shape.rank != 1:
            raise ValueError(
                f"evaluate returns {name} with the shape {values.shape}: "
                "return a value for each example, [batch]; the session takes their mean over the "
                "test set"
            )
