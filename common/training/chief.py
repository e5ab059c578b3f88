"""The chief's part of a training session: it saves and evaluates, and writes the results."""

import functools
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf

from common import copies, data, models
from common.record import faults, metric, results
from common.training import checkpoints
from common.training.evaluation import Evaluation
from common.training.together import StartAndStop


class Chief:
    """Attributes:
    saver: saves and restores the global variables.
    hooks: save and evaluate during the training.
    """

    def __init__(
        self,
        task,
        params: Sequence[tf.Variable],
        tables: Sequence,
        evaluate: Callable[..., dict[str, tf.Tensor]] | None,
        test: tuple[np.ndarray, np.ndarray] | None,
        validation: tuple[np.ndarray, np.ndarray] | None,
        together: StartAndStop,
        count: tf.Tensor,
    ):
        """`tables`, `evaluate`, `test`, `validation`: as in `session.training`. `together` stops
        all workers when an evaluation says so; `count` is the global step that hooks read."""
        self._task, self._params, self._blocks = task, list(params), copies.blocks_of(*tables)
        flags = task.flags
        self.saver = checkpoints.saver(flags.checkpoint_dir, getattr(flags, "keep_checkpoints", 2))
        every = getattr(flags, "checkpoint_every", None)
        self._saving = checkpoints.Checkpoints(flags.checkpoint_dir, self.saver, every, count)
        evaluate = evaluate or functools.partial(models.evaluate, task.flags.model)
        test = test or data.load(task.flags, "test")
        self._evaluation = Evaluation(
            task, params, tables, evaluate, test, validation, together.stop, count
        )
        self.hooks = [self._saving, self._evaluation]

    def write(self, session: tf.Session) -> None:
        """After the last update: evaluates on the test set, saves, writes parameters.npz."""
        flags = self._task.flags
        found = self._evaluation.last(session)
        if not math.isfinite(found["test_loss"]):
            faults.diverged(self._task, "the loss on the test set")
        self._saving.save(session)
        values = session.run([*self._evaluation.params, *self._blocks])
        arrays = _whole([*self._params, *self._blocks], values)
        results.write(Path(flags.results, "parameters.npz"), lambda file: np.savez(file, **arrays))
        print(f"{metric.text(found)} after {found['global_step']} updates; "
              f"results in {flags.results}", flush=True)  # fmt: skip


def _whole(params: Sequence[tf.Variable], values: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """The value of each parameter, by name; the blocks of one that was cut are joined."""
    found: dict[str, np.ndarray] = {}
    for param, value in zip(params, values, strict=True):
        name, shape, part = checkpoints.saved_as(param)
        found.setdefault(name, np.empty(shape, value.dtype))[part] = value
    return found
