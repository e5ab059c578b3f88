"""Stands in for an accelerator: what it computes takes some time, during which the core is free."""

from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from common.graph import clock
from common.graph.scope import scope


def start(params: Sequence, batch: Sequence) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """The time when all of `params` and `batch` are there (this device's clock, in seconds), and
    the batch from then on, so that computing begins no earlier."""
    began = clock.now([*params, *batch])
    with tf.control_dependencies([began]):
        return began, [tf.identity(part) for part in batch]


@scope("accelerator")
def at_least(milliseconds: float, began: tf.Tensor, values):
    """Passes on a structure of tensors, at the earliest `milliseconds` after `began`; until then it
    sleeps.

    An operation of TensorFlow's sleeps, since a Python function exists in one process only, and the
    one that carries out the graph may be another.
    """
    kind = {"output_types": [tf.bool], "output_shapes": [[]]}
    # Of an IndexedSlices, the parts.
    parts = tf.nest.flatten(values, expand_composites=True)
    with tf.device("/cpu:0"):  # of this task
        rest = began + milliseconds / 1000 - clock.now(parts)
        whole = tf.raw_ops.TensorDataset(components=[True], output_shapes=[[]])
        late = tf.raw_ops.SleepDataset(
            input_dataset=whole,
            sleep_microseconds=tf.cast(1e6 * tf.maximum(rest, 0), tf.int64),
            **kind,
        )
        # Without `take`, it would sleep a second time before it learns that there are no more.
        one = tf.raw_ops.TakeDataset(input_dataset=late, count=1, **kind)
        slept = tf.raw_ops.DatasetToSingleElement(dataset=one, **kind)
    with tf.control_dependencies(slept):
        return tf.nest.map_structure(tf.identity, values, expand_composites=True)
