"""A worker's curves in TensorBoard: each point averages the steps since the previous one."""

from collections.abc import Mapping

import tensorflow.compat.v1 as tf
from tensorboard.plugins.hparams import summary_v2

POINTS = 100  # about this many per worker; in a long run, one per second
# Flags that say where a run is, not what it does.
ELSEWHERE = {"results", "checkpoint_dir", "data_url", "network", "timeout", "max_restarts", "plain",
             "open", "job_name", "task_index", "ps_hosts", "worker_hosts"}  # fmt: skip


def open_writer(results: str, run: str) -> tf.summary.FileWriter:
    """This process's only writer for `run`, a TensorBoard run. A new one starts with the graph."""
    return tf.summary.FileWriterCache.get(f"{results}/{run}")


def write(writer: tf.summary.FileWriter, scalars: Mapping[str, float], global_step: int) -> None:
    values = [tf.Summary.Value(tag=tag, simple_value=scalars[tag]) for tag in scalars]
    writer.add_summary(tf.Summary(value=values), global_step)
    writer.flush()


def hyperparameters(flags) -> tf.Summary:
    """What the table HPARAMS compares runs by: the flags that can change what is learned, or how
    fast."""
    values = {name: value for name, value in vars(flags).items()
              if name not in ELSEWHERE and isinstance(value, bool | int | float | str)}  # fmt: skip
    return tf.Summary.FromString(summary_v2.hparams_pb(values).SerializeToString())


class Board:
    """The points of one worker, thread or tower; `common/README.md` describes them."""

    def __init__(self, flags, worker: int, every: int | None = None):
        self._flags, self._worker = flags, worker
        self._steps = every or max(1, flags.steps // POINTS)  # updates by all workers per point
        self._events, self._step, self._time = [], 0, float("inf")  # at the last point

    def open(self, opened=open_writer) -> None:
        """Opens the writer. Call this once the graph is complete."""
        self._writer = opened(self._flags.results, f"worker-{self._worker}")

    def note(self, events: list[dict], last: bool) -> None:
        """Adds events; `last`: no more will come."""
        for event in events:
            self._events.append(event)
            began = event["time"] - event["pull"] - event["compute"] - event["push"]
            self._time = min(self._time, began)
            late = event["time"] >= self._time + 1
            if late or event["global_step"] >= self._step + self._steps:
                self._point()
        if last and self._events:
            self._point()

    def _point(self) -> None:
        events, self._events = self._events, []
        self._step, began, self._time = events[-1]["global_step"], self._time, events[-1]["time"]
        seconds = max(1e-6, self._time - began)
        computing = sum(event["compute"] for event in events) / seconds
        communicating = sum(event["pull"] + event["push"] for event in events) / seconds
        examples = sum(event["examples"] for event in events)
        scalars = {
            "loss": sum(event["loss"] for event in events) / len(events),
            "staleness": sum(event["staleness"] for event in events) / len(events),
            "speed/examples_per_second": examples / seconds,
            "time/computing": computing,
            "time/communicating": communicating,
            "time/waiting": max(0.0, 1 - computing - communicating),
        }
        write(self._writer, scalars, self._step)
