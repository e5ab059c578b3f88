"""Gates: tasks start and stop together, without sleeping or counting.

A gate is an empty queue on a task's server. A task waits at it by trying to take an element,
which never comes. Opening the gate closes the queue: all tasks that wait, or come later, pass. An
open gate stays open: opening it twice, or passing it again after a restart, changes nothing.
"""

import time

import tensorflow.compat.v1 as tf

from common import fail
from common.graph import aborts
from common.graph.scope import scope


class Gate:
    """One gate on a task, usually ps 0; tasks that use the same name share it.

    Attributes:
        closed: whether its queue is closed: then the gate is open. A scalar.
    """

    @scope("gates")
    def __init__(self, name: str, device: str = "/job:ps/task:0"):
        with tf.device(device):
            queue = tf.FIFOQueue(1, tf.bool, shapes=[[]], shared_name=f"gate/{name}")
            self._open, self._pass, self.closed = queue.close(), queue.dequeue(), queue.is_closed()

    def open(self, session: tf.Session) -> None:
        while True:
            try:
                session.run(self._open)
            except (tf.errors.AbortedError, tf.errors.CancelledError) as error:
                if aborts.is_abort(error):
                    continue  # to open it twice changes nothing
                if isinstance(error, tf.errors.AbortedError):
                    raise  # cancelled: it was open already
            return

    def is_open(self, session: tf.Session) -> bool:
        return bool(session.run(self.closed))

    def opens(self, session: tf.Session, seconds: float) -> bool:
        """Whether it is open or opens within `seconds`; allow time for a message to the ps."""
        patience = tf.RunOptions(timeout_in_ms=max(1, int(1000 * seconds)))
        try:
            session.run(self._pass, options=patience)
        except tf.errors.OutOfRangeError:  # closed: pass
            return True
        except tf.errors.DeadlineExceededError:
            return False
        except (tf.errors.AbortedError, tf.errors.CancelledError) as error:
            if not aborts.is_abort(error):
                raise
            return False

    def wait(self, session: tf.Session, whom: str, timeout: float, check=lambda: None) -> None:
        """Blocks until `whom` opens the gate, and now and then calls `check`. After `timeout`
        seconds, exits with a one-line error that names `whom`. `session` must reach the gate's ps.
        """
        end = time.monotonic() + timeout
        while not self.opens(session, min(5, end - time.monotonic())):
            if time.monotonic() > end:
                fail(f"waited {timeout:g} s for {whom}: start it, or see its log")
            print(f"waiting for {whom} ...", flush=True)
            check()


def leave_when_all_have(task, server: tf.train.Server) -> None:
    """How a bare server ends: it waits until every worker, or the chief, has left.

    `server.join()` would never return, since TensorFlow has no call that ends a server.
    """
    gates = {who: Gate(f"left-{task.name}-{who}", task.device) for who in task.clients}
    print(f"{task.name} serves at {task.address}", flush=True)
    with tf.Session(server.target, config=task.config) as session:
        for who, gate in gates.items():
            gate.wait(session, f"{who} to finish", float("inf"))
    print(f"{task.name} exits after {' and '.join(gates)}", flush=True)
