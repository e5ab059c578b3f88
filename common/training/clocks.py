"""Times that the graph reads while it runs, in seconds since 1970, each kept under a tensor.

`pull` and `send` read them where they know what has just happened, `session.training` finds them by
the count at the pull (`pulled_at`) and the number of the update:

    pulled_at   "read": on the ps, just before; "arrived": the values are on the worker
    number      "computed": what is pushed is ready; "counted": on the ps, just before
    token       of a synchronous scheme, both of these: "asked": on the ps, before the wait for it
"""

import tensorflow.compat.v1 as tf


def now(after: list) -> tf.Tensor:
    """Reads the clock of the current device once all of `after` are there; float64 scalar."""
    with tf.control_dependencies(after):
        return tf.timestamp()


def note(what: str, tensor: tf.Tensor, time: tf.Tensor) -> None:
    tf.add_to_collection(f"{what}/{tensor.name}", time)


def noted(what: str, tensor: tf.Tensor) -> tf.Tensor | None:
    """The time that was noted, or None, as where nothing is pulled or pushed."""
    found = tf.get_collection(f"{what}/{tensor.name}")
    return found[0] if found else None
