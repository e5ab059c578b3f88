"""Watches the steps while they run: when each worker computes, and what travels between tasks."""

import json
import re
from pathlib import Path

import tensorflow.compat.v1 as tf

TRACED = range(5, 10)  # the steps that Transfers looks into; costs.py leaves them out
ENDS = re.compile(r"from /job:(\w+)/\S*task:(\d+)/\S* to /job:(\w+)/\S*task:(\d+)/")


def hooks(flags, clocks: dict | None = None) -> list[tf.train.SessionRunHook]:
    """Those of one script; `clocks` as `Clocks` takes them, if it has some."""
    return [Transfers(flags.results), *([Clocks(flags.results, clocks)] if clocks else [])]


class Clocks(tf.train.SessionRunHook):
    """Writes a line for each step to `clocks.jsonl`: when each part of it began and ended."""

    def __init__(self, folder: str, clocks: dict):
        """`clocks`: (`forward` or `backward`, worker, micro-batch) -> two tensors, its begin and
        its end in seconds since 1970."""
        self._path = Path(folder, "clocks.jsonl")
        self._names, self._clocks = list(clocks), list(clocks.values())

    def begin(self):
        self._file = open(self._path, "a", buffering=1, encoding="utf-8")  # whole lines

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(self._clocks)

    def after_run(self, run_context, run_values):
        line = [[*name, *map(float, times)] for name, times in zip(self._names, run_values.results)]
        self._file.write(json.dumps(line) + "\n")


class Transfers(tf.train.SessionRunHook):
    """Writes to `transfers.json` what the tasks' servers received in one step: for each tensor from
    which task, to which task, and its bytes.

    TensorFlow's master asks the servers to take notes when a step begins, and does not wait for
    their answer: a server may miss its first tensors. So several steps are looked at, and the one
    with the most notes is kept.
    """

    def __init__(self, folder: str):
        self._path, self._step, self._most = Path(folder, "transfers.json"), 0, []

    def before_run(self, run_context):
        if self._step in TRACED:
            traced = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
            return tf.train.SessionRunArgs(None, options=traced)

    def after_run(self, run_context, run_values):
        if self._step in TRACED:
            devices = run_values.run_metadata.step_stats.dev_stats
            found = [_transfer(node) for device in devices for node in device.node_stats]
            self._most = max(self._most, sorted(filter(None, found)), key=len)
            self._path.write_text(json.dumps(self._most))
        self._step += 1


def _transfer(node) -> list | None:
    """From, to and bytes, if a server noted that it received a tensor."""
    ends = ENDS.search(node.timeline_label)
    if node.node_name != "RecvTensor" or not ends:
        return None
    job, k, to_job, to_k = ends.groups()
    size = node.output[0].tensor_description.allocation_description.requested_bytes
    return [f"{job} {k}", f"{to_job} {to_k}", size]
