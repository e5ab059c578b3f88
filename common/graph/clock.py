"""The clock of the machine on which an operation runs."""

from collections.abc import Sequence

import tensorflow.compat.v1 as tf


def now(after: Sequence) -> tf.Tensor:
    """Reads the current device's clock after all of `after`: seconds since 1970, float64."""
    with tf.control_dependencies(after):
        return tf.timestamp()
