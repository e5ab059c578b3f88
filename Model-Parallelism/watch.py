"""Hooks that measure steps: when each worker computes, and what travels between tasks."""

import collections
import json
import re
from pathlib import Path

import tensorflow.compat.v1 as tf

from common.record import results

TRACED = range(5, 10)  # the steps that Transfers traces; costs.py leaves them out
ENDS = re.compile(r"from /job:(\w+)/\S*task:(\d+)/\S* to /job:(\w+)/\S*task:(\d+)/")


def hooks(flags, clocks: dict | None = None) -> list[tf.train.SessionRunHook]:
    """The hooks of one script; `clocks` as for `Clocks`, if the script has any."""
    return [Transfers(flags.results), *([Clocks(flags.results, clocks)] if clocks else [])]


class Clocks(tf.train.SessionRunHook):
    """Writes a line per step to `clocks.jsonl`: when each of its parts began and ended."""

    def __init__(self, folder: str, clocks: dict):
        """`clocks`: (`forward` or `backward`, worker, micro-batch) -> two
        tensors: its start and end, in seconds since 1970."""
        self._path = Path(folder, "clocks.jsonl")
        self._names, self._clocks = list(clocks), list(clocks.values())

    def begin(self):
        self._file = results.append(self._path)

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(self._clocks)

    def after_run(self, run_context, run_values):
        line = [[*name, *map(float, times)] for name, times in zip(self._names, run_values.results)]
        self._file.write(json.dumps(line) + "\n")


class Transfers(tf.train.SessionRunHook):
    """Writes to `transfers.json` what the tasks' servers received in one step: for each tensor,
    the sending task, the receiving task and the number of bytes.

    TensorFlow's master asks the servers to trace a step when it begins, and does not wait for their
    answer: a server may miss its first tensors. So this hook traces several steps and keeps, for
    each kind of transfer, the step with the most of them.
    """

    def __init__(self, folder: str):
        self._path, self._step = Path(folder, "transfers.json"), 0
        self._most: collections.Counter[tuple] = collections.Counter()

    def before_run(self, run_context):
        if self._step in TRACED:
            traced = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
            return tf.train.SessionRunArgs(None, options=traced)

    def after_run(self, run_context, run_values):
        if self._step in TRACED:
            devices = run_values.run_metadata.step_stats.dev_stats
            found = [_transfer(node) for device in devices for node in device.node_stats]
            self._most |= collections.Counter(filter(None, found))  # the larger number of each
            self._path.write_text(json.dumps(sorted(self._most.elements())))
        self._step += 1


def _transfer(node) -> tuple | None:
    """Source, target and bytes, if the node records a received tensor."""
    ends = ENDS.search(node.timeline_label)
    if node.node_name != "RecvTensor" or not ends:
        return None
    job, k, to_job, to_k = ends.groups()
    size = node.output[0].tensor_description.allocation_description.requested_bytes
    return f"{job} {k}", f"{to_job} {to_k}", size
