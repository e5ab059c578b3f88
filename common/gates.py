"""Gates: how tasks start together and stop together, without a sleep and without a count.

A gate is an empty queue on a parameter server. Whoever waits at it takes an element that never
comes; opening it closes the queue, and everybody who waits, or comes later, goes through. An open
gate stays open: opening it twice, or passing it again after a restart, changes nothing.
"""

import contextlib
import time
from collections.abc import Callable, Sequence

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

    def wait(self, session: tf.Session, whom: str, timeout: float) -> None:
        """Blocks until the gate is open.

        Args:
            session: a session that reaches the gate's ps.
            whom: who opens it, for the messages.
            timeout: seconds after which the process ends with one sentence naming `whom`.
        """
        begun = time.monotonic()
        while time.monotonic() - begun < timeout:
            try:
                patience = max(1, int(1000 * min(5, timeout - (time.monotonic() - begun))))
                session.run(self._pass, options=tf.RunOptions(timeout_in_ms=patience))
            except tf.errors.OutOfRangeError:  # closed: come through
                return
            except tf.errors.DeadlineExceededError:
                print(f"waiting for {whom} ...", flush=True)
        fail(f"{whom} did not come within {timeout:g} s: start it, or see its log")


class StartAndStop(tf.train.SessionRunHook):
    """Workers start together, stop together and leave together.

    Start: each opens its own gate and waits at everybody's. Stop: each says that its loop has
    ended; the chief waits for all, finishes the run, and lets everybody go. A task that was started
    again finds open gates, or opens its own again on a ps that was started again.
    """

    def __init__(self, task, begin: Sequence[tf.Operation] = (), end: Sequence[tf.Operation] = ()):
        """`begin` is run before anybody starts, and again after a recovery; `end` makes workers
        stop that wait for others."""
        self._task, self._begin, self._end = task, list(begin), list(end)
        self._started = False
        self._look = 0.0
        if not task.hosts:
            return
        everyone = range(task.workers)
        self._ready = [Gate(f"ready-{worker}") for worker in everyone]
        self._done = [Gate(f"done-{worker}") for worker in everyone]
        self._finished, self._stop = Gate("finished"), Gate("stop")
        self._left = [Gate(f"left-{ps}-{task.index}", ps) for ps, _ in enumerate(task.hosts["ps"])]

    def after_create_session(self, session, coord):
        """Also after a recovery; who has started once does not wait again."""
        with contextlib.suppress(tf.errors.CancelledError):  # what it fills was closed: at the end
            session.run(self._begin)
        if not self._task.hosts:
            return
        self._ready[self._task.index].open(session)
        for worker, gate in enumerate(self._ready):
            if not self._started:
                gate.wait(session, self._who(worker), self._task.flags.timeout)
        self._started = True

    def after_run(self, run_context, run_values):
        """With a target accuracy, looks twice a second whether the chief has seen it reached."""
        if self._task.flags.target_accuracy and self._task.hosts and time.time() > self._look:
            self._look = time.time() + 0.5
            if self._stop.is_open(run_context.session):
                run_context.request_stop()

    def stop(self, session: tf.Session) -> None:
        """Makes every worker stop, before `--steps` is reached."""
        if self._task.hosts:
            self._stop.open(session)
            session.run(self._end)

    def finish(self, session: tf.Session, write: Callable[[], None]) -> None:
        """After the loop: the chief calls `write` when every worker's last update is applied.

        Args:
            session: a new session.
            write: writes the results; may be called again if a ps is lost in the middle.
        """
        task = self._task
        if not task.hosts:
            write()
            return
        self._done[task.index].open(session)
        if task.is_chief:
            for worker, gate in enumerate(self._done):
                gate.wait(session, self._who(worker), task.flags.timeout)
            write()
            self._finished.open(session)
        else:
            self._finished.wait(session, self._who(0), task.flags.timeout)
        for gate in self._left:  # a ps that saw the last one go is gone before it can answer
            with contextlib.suppress(tf.errors.UnavailableError, tf.errors.AbortedError):
                gate.open(session)

    def _who(self, worker: int) -> str:
        return f"worker {worker} at {self._task.hosts['worker'][worker]}"


def leave_when_all_have(task, server: tf.train.Server) -> None:
    """How a parameter server ends: it waits until every worker has left.

    `server.join()` would never return, since TensorFlow has no call that ends a server.
    """
    gates = [Gate(f"left-{task.index}-{worker}", task.index) for worker in range(task.workers)]
    print(f"{task.name} serves at {task.address}", flush=True)
    with tf.Session(server.target, config=task.config) as session:
        for worker, gate in enumerate(gates):
            gate.wait(session, f"worker {worker} to finish", float("inf"))
    print(f"{task.name} ends: all workers have left", flush=True)
