"""Gates: how tasks start together and stop together, without a sleep and without a count.

A gate is an empty queue on a parameter server. Whoever waits at it takes an element that never
comes; opening it closes the queue, and everybody who waits, or comes later, goes through. An open
gate stays open: opening it twice, or passing it again after a restart, changes nothing.
"""

import contextlib
import time

import tensorflow.compat.v1 as tf

from common import fail


class Gate:
    """One gate on `/job:ps/task:<ps>`; tasks that name the same gate share it."""

    def __init__(self, name: str, ps: int = 0):
        with tf.device(f"/job:ps/task:{ps}"):
            queue = tf.FIFOQueue(1, tf.bool, shapes=[[]], shared_name=f"gate/{name}")
            self._open, self._pass, self._closed = queue.close(), queue.dequeue(), queue.is_closed()

    def open(self, session: tf.Session) -> None:
        with contextlib.suppress(tf.errors.CancelledError):  # says that it is open already
            session.run(self._open)

    def is_open(self, session: tf.Session) -> bool:
        return bool(session.run(self._closed))

    def opens(self, session: tf.Session, seconds: float) -> bool:
        """Whether it is open or opens within so many seconds, enough for a message to the ps."""
        patience = tf.RunOptions(timeout_in_ms=max(1, int(1000 * seconds)))
        try:
            session.run(self._pass, options=patience)
        except tf.errors.OutOfRangeError:  # closed: come through
            return True
        except tf.errors.DeadlineExceededError:
            return False

    def wait(self, session: tf.Session, whom: str, timeout: float) -> None:
        """Blocks until `whom` opens the gate; after `timeout` seconds ends the process with one
        sentence that names `whom`. `session` must reach the gate's ps."""
        end = time.monotonic() + timeout
        while not self.opens(session, min(5, end - time.monotonic())):
            if time.monotonic() > end:
                fail(f"{whom} did not come within {timeout:g} s: start it, or see its log")
            print(f"waiting for {whom} ...", flush=True)


def leave_when_all_have(task, server: tf.train.Server) -> None:
    """How a parameter server ends: it waits until every worker has left.

    `server.join()` would never return, since TensorFlow has no call that ends a server.
    """
    everyone = range(task.flags.workers)
    gates = [Gate(f"left-{task.index}-{worker}", task.index) for worker in everyone]
    print(f"{task.name} serves at {task.address}", flush=True)
    with tf.Session(server.target, config=task.config) as session:
        for worker, gate in enumerate(gates):
            gate.wait(session, f"worker {worker} to finish", float("inf"))
    print(f"{task.name} ends: all workers have left", flush=True)
