"""How a step measures itself: clocks in the graph, and queues that store their readings.

`pull` and `send` read a clock at each stage, and file the time under a tensor, where
`session.training` finds it:

    pulled_at   "read": on the ps, just before the read; "arrived": the values are on the worker
    number      "computed": the values to push are ready; "counted": on the ps, before the count
    token       (synchronous) all but "counted", and "asked": on the ps, before the wait for it
"""

import math

import tensorflow.compat.v1 as tf


def now(after: list) -> tf.Tensor:
    """Reads the current device's clock after all of `after`: seconds since 1970, float64."""
    with tf.control_dependencies(after):
        return tf.timestamp()


def note(what: str, tensor: tf.Tensor, time: tf.Tensor) -> None:
    tf.add_to_collection(f"{what}/{tensor.name}", time)


def noted(what: str, tensor: tf.Tensor) -> tf.Tensor | None:
    """The time that was noted, or None, for example if nothing is pulled or pushed."""
    found = tf.get_collection(f"{what}/{tensor.name}")
    return found[0] if found else None


class Rows:
    """Scalars of each step, kept on their device until many steps are read at once.

    Fetching them would cost each step a transfer. They also survive a call that ends early, as the
    last one does if it reaches `--steps` midway.

    Attributes:
        put: adds a row of the values (NaN for None) to a queue, once they are available.
        read: removes and returns all rows so far, [rows, values], float64.
    """

    def __init__(self, values: list, device: str, name: str):
        """`name` must be unique in the cluster."""
        with tf.device(device):
            queue = tf.FIFOQueue(-1, tf.float64, [[len(values)]], shared_name=f"rows-{name}")
            row = [math.nan if value is None else value for value in values]
            self.put = queue.enqueue(tf.stack([tf.cast(value, tf.float64) for value in row]))
            self.read = queue.dequeue_many(queue.size())
