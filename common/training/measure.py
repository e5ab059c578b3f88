"""What a step measures of itself: clocks in the graph, and queues that keep what they show.

`pull` and `send` read a clock where they know what has just happened, and keep the time under a
tensor; `session.training` finds it there:

    pulled_at   "read": on the ps, just before; "arrived": the values are on the worker
    number      "computed": what is pushed is ready; "counted": on the ps, just before
    token       of a synchronous scheme, both of these: "asked": on the ps, before the wait for it
"""

import math

import tensorflow.compat.v1 as tf


def now(after: list) -> tf.Tensor:
    """The current device's clock once all of `after` are there: seconds since 1970, float64."""
    with tf.control_dependencies(after):
        return tf.timestamp()


def note(what: str, tensor: tf.Tensor, time: tf.Tensor) -> None:
    tf.add_to_collection(f"{what}/{tensor.name}", time)


def noted(what: str, tensor: tf.Tensor) -> tf.Tensor | None:
    """The time that was noted, or None, as where nothing is pulled or pushed."""
    found = tf.get_collection(f"{what}/{tensor.name}")
    return found[0] if found else None


class Rows:
    """Scalars of each step, kept on the device where they are until many steps are read at once.

    To fetch them would cost each step a transfer; and they outlive a call that breaks off after
    them, as the last one does when `--steps` is reached in the middle.

    Attributes:
        put: adds a row of the values (NaN for None) to a queue, once they are there.
        read: all rows so far, [rows, values], float64; they are gone then.
    """

    def __init__(self, values: list, device: str, name: str):
        """`name` is unique in the cluster."""
        with tf.device(device):
            queue = tf.FIFOQueue(-1, tf.float64, [[len(values)]], shared_name=f"rows-{name}")
            row = [math.nan if value is None else value for value in values]
            self.put = queue.enqueue(tf.stack([tf.cast(value, tf.float64) for value in row]))
            self.read = queue.dequeue_many(queue.size())
