"""For a training loop without `session.training`: writes the same files in the same form."""

import atexit
import functools
import json
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf

from common import datasets
from common.record import closing, results
from common.training import board


class Events:
    """The events of one replica, one line per step, and its curves in TensorBoard;
    `common/README.md` describes the keys."""

    def __init__(self, flags, worker: int, every: int | None = None):
        """Writes to `flags.results`; a restarted task appends. `every`: updates by all replicas
        per point in TensorBoard; default: a hundredth of `--steps`."""
        results.create(flags.results)
        batch = flags.batch_size or datasets.shard(flags, worker, flags.workers)
        self._examples = batch * getattr(flags, "window", 1)  # per step, if `note` does not say
        self._file = closing.open_events(flags, worker)
        self._local_step, self._board = 0, board.Board(flags, worker, every)
        self._board.open(_open_writer)
        atexit.register(lambda: self._board.note([], last=True))

    def note(
        self,
        global_step: int,
        loss: float,
        compute: float,
        pull: float = 0.0,
        push: float = 0.0,
        pulled_at: int | None = None,
        **more,
    ) -> None:
        """Writes the step that has just ended.

        Args:
            global_step: which update of the global parameters it made, from 1.
            loss: of its mini-batch.
            compute, pull, push: seconds that each took.
            pulled_at: how many updates had been made at its pull; default: all before its own.
            more: what only this example measures.
        """
        self._local_step += 1
        pulled_at = global_step - 1 if pulled_at is None else pulled_at
        event = {
            "time": time.time(), "local_step": self._local_step, "global_step": global_step,
            "loss": loss, "staleness": max(0, global_step - 1 - pulled_at),
            "pulled_at": pulled_at, "gap": None, "out": None, "counted": None,
            "pull": pull, "compute": compute, "push": push, "examples": self._examples, **more,
        }  # fmt: skip
        self._file.write(json.dumps(event) + "\n")
        self._board.note([event], last=False)


def note_evaluation(flags, found: dict) -> None:
    """Appends an evaluation of the global parameters, on the test set or a validation set, to
    `evaluations.jsonl`, and to TensorBoard, with the flags."""
    with results.append(Path(flags.results) / "evaluations.jsonl") as file:
        file.write(json.dumps({"time": time.time()} | found) + "\n")
    for kind in ("test", "validation"):
        scalars = {name: value for name, value in found.items() if name.startswith(f"{kind}_")}
        if scalars:
            writer = _open_writer(flags.results, kind)
            if writer not in _described:
                writer.add_summary(board.hyperparameters(flags))
                _described.add(writer)
            board.write(writer, scalars, found["global_step"])


_described: set[tf.summary.FileWriter] = set()  # those that know the flags


@functools.cache
def _open_writer(folder: str, run: str) -> tf.summary.FileWriter:
    """Like `board.open_writer`, but without a graph: TensorFlow 2's eager mode has none."""
    with tf.Graph().as_default():
        return tf.summary.FileWriter(f"{folder}/{run}")


def finish(flags, arrays: Mapping[str, np.ndarray], global_step: int, **test) -> None:
    """Writes the last evaluation and the final parameters of a run to `flags.results`.

    Args:
        arrays: the global parameters by name, in model order.
        global_step: how many updates were made.
        test: `test_accuracy`, `test_loss`, and any other means over the test set.
    """
    note_evaluation(flags, {"global_step": global_step, **test})
    results.write(Path(flags.results, "parameters.npz"), lambda file: np.savez(file, **arrays))
