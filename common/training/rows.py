"""Rows of numbers about steps, kept where they come to be and read many at once.

Fetching them would cost each step a transfer. A row also survives a call that breaks off after it,
as the last call does when `--steps` is reached in the middle.
"""

import math

import tensorflow.compat.v1 as tf


class Rows:
    """A queue of rows on one device.

    Attributes:
        put: adds a row, once its values are there.
        read: all rows so far, [rows, values], float64; they are gone then.
    """

    def __init__(self, values: list, device: str, name: str):
        """
        Args:
            values: scalars; None becomes NaN.
            device: where they are.
            name: unique in the cluster.
        """
        with tf.device(device):
            queue = tf.FIFOQueue(-1, tf.float64, [[len(values)]], shared_name=f"rows-{name}")
            row = [math.nan if value is None else value for value in values]
            self.put = queue.enqueue(tf.stack([tf.cast(value, tf.float64) for value in row]))
            self.read = queue.dequeue_many(queue.size())
