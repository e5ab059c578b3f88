"""Numbers that each step leaves on a device, until many steps are read at once."""

from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from common.graph.scope import scope

ABSENT = float("nan")  # stands in a row for what was not measured


class Rows:
    """Rows of numbers, one per step. Fetching them with each step would cost a transfer.

    A queue on the device keeps them, so they survive a call of the session that ends early, as the
    last one does if it reaches `--steps` midway. A call that reads them can be lost, too:
    TensorFlow may carry it out and then say that it was aborted. So the device keeps what it has
    handed out until the next call says how many rows have arrived.

    Attributes:
        put: adds a row to the queue, once its values are available.
        count: how many rows have arrived here, since the first; -1: nobody here knows, since
            another process read them, too.
        known: a placeholder for `count`.
        arrived: the same; if unknown, how many rows the device no longer has.
        both: the rows that have not arrived, or may not have.
    """

    @scope("events")
    def __init__(self, values: Sequence, device: str, name: str):
        """`values`: scalars, or None if not measured. `name` must be unique in the cluster."""
        with tf.device(device):
            queue = tf.FIFOQueue(-1, tf.float64, [[len(values)]], shared_name=f"rows-{name}")
            row = [ABSENT if value is None else value for value in values]
            self.put = queue.enqueue(tf.stack([tf.cast(value, tf.float64) for value in row]))
            # Not among the variables that a session initialises: a new session must not lose rows.
            kept = _State(f"rows-{name}-kept", tf.zeros([0, len(values)], tf.float64))
            gone = _State(f"rows-{name}-gone", tf.zeros([], tf.int64))  # how many rows it dropped
            self.known = tf.placeholder(tf.int64, [])
            self.arrived = tf.where(self.known < 0, gone.value, self.known)
            still = kept.value[self.arrived - gone.value :]
            # A call that is ended while it waits for `known` has taken nothing from the queue.
            with tf.control_dependencies([still]):
                new = queue.dequeue_many(queue.size())
            both = tf.concat([still, new], axis=0)
            with tf.control_dependencies([both]):  # all is read before anything is written
                written = [kept.write(both), gone.write(self.arrived)]
            with tf.control_dependencies(written):
                self.both = tf.identity(both)
            with tf.control_dependencies([queue.dequeue_many(queue.size())]):
                self._forget = tf.group(kept.write(kept.first), gone.write(gone.first))
        self.count = -1

    def forget(self, session: tf.Session) -> None:
        """Drops all rows: another process, or a lost session, left them."""
        session.run(self._forget)
        self.count = 0


def wanted(several: Sequence[Rows]) -> tuple[list, dict]:
    """What a call of the session has to fetch, and to feed, for `taken`."""
    # Always the same tensors: the graph of such a call is prepared once, which takes its time.
    feeds = {each.known: each.count for each in several}
    return [(each.both, each.arrived) for each in several], feeds


def taken(several: Sequence[Rows], values: Sequence) -> list[list[list[float]]]:
    """Returns the rows of each since the last call, in the order in which they were put. The first
    call also returns the last rows that an earlier process has read.

    Args:
        values: what a call of the session has fetched.
    """
    found = []
    for each, (rows, arrived) in zip(several, values, strict=True):
        each.count = int(arrived) + len(rows)
        found.append(rows.tolist())
    return found


def read_all(several: Sequence[Rows], session: tf.Session) -> list[list[list[float]]]:
    """Reads the rows with one call of the session."""
    return taken(several, session.run(*wanted(several)))


class _State:
    """A variable that holds `first` until it is written; no initialisation resets it."""

    def __init__(self, name: str, first: tf.Tensor):
        shape = [None, *first.shape[1:]] if first.shape.rank else []
        handle = tf.raw_ops.VarHandleOp(dtype=first.dtype, shape=shape, shared_name=name)
        self._handle, self.first = handle, first
        self.value = tf.cond(
            tf.raw_ops.VarIsInitializedOp(resource=handle),
            lambda: tf.raw_ops.ReadVariableOp(resource=handle, dtype=first.dtype),
            lambda: first,
        )

    def write(self, value: tf.Tensor) -> tf.Operation:
        return tf.raw_ops.AssignVariableOp(resource=self._handle, value=value)
