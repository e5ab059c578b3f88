"""Makes the workers of a run start and stop together."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence

import tensorflow.compat.v1 as tf

from common import data
from common.gates import Gate
from common.graph.closing import Session


class StartAndStop(tf.train.SessionRunHook):
    """Start: each worker opens its own gate and waits at all the other gates. Stop: each reports
    that its loop has ended; the chief waits for all, finishes the run, and lets them go. If a task
    restarts, it finds the gates open, or opens its own again on a restarted ps."""

    def __init__(self, task, begin: Sequence[tf.Operation] = (), end: Sequence[tf.Operation] = ()):
        """`begin` runs before any worker starts, and again after a recovery; `end` stops workers
        that wait for others."""
        self._task, self._begin, self._end = task, list(begin), list(end)
        self._started, self._look = False, 0.0
        self._data_ended = False
        global_step = tf.train.get_global_step()
        with tf.name_scope("count"):
            self._count = None if global_step is None else global_step.read_value()
        if not task.hosts:
            return
        self._who = [f"{name} at {address}" for name, address in task.clients.items()]
        self._ready = [Gate(f"ready-{client}") for client in task.clients]
        self._done = [Gate(f"done-{client}") for client in task.clients]
        self._finished, self._stop = Gate("finished"), Gate("stop")
        self._left = [Gate(f"left-{job} {k}-{task.name}", f"/job:{job}/task:{k}")
                      for job, k in task.servers]  # fmt: skip

    def after_create_session(self, session, coord):
        """Also runs after a recovery; a worker that has started does not wait again."""
        with contextlib.suppress(tf.errors.CancelledError):  # at the end, its queues are closed
            session.run(self._begin)
        if not self._task.hosts:
            return
        self._ready[self._task.index].open(session)
        for who, gate in zip(self._who, self._ready):
            if not self._started:
                gate.wait(session, f"{who} to start", self._task.flags.timeout)
        self._started = True

    def before_run(self, run_context):
        """Twice a second, a step also asks whether another worker has stopped the run. A call of
        its own would take a step's time on a slow link."""
        if self._task.hosts and time.time() > self._look:
            self._look = time.time() + 0.5
            return tf.train.SessionRunArgs(self._stop.closed)
        return None

    def after_run(self, run_context, run_values):
        if run_values.results:
            run_context.request_stop()

    @contextlib.contextmanager
    def data_may_end(self) -> Iterator[None]:
        """The loop inside ends without an error after the last update, and if its data ends."""
        try:
            yield
        except tf.errors.OutOfRangeError as error:
            self._data_ended = data.is_end(error)

    def end(self, session):
        """The loop has ended: if it was not the last update that ended it, all workers stop."""
        if self._count is None:
            return
        self._updates, steps = int(session.run(self._count)), self._task.flags.steps
        if self._data_ended:
            print(f"> [{self._task.name}] its data set has ended, so the run ends at update "
                  f"{self._updates} of {steps}: to go on, let the data set repeat",
                  flush=True)  # fmt: skip
        if self._updates < steps:
            self.stop(session)

    def stop(self, session: tf.Session) -> None:
        """Stops every worker before `--steps` is reached."""
        if self._task.hosts:
            self._stop.open(session)
            with contextlib.suppress(tf.errors.CancelledError):  # its queues are closed already
                session.run(self._end)

    def finish(self, session: Session, write: Callable[[], None]) -> None:
        """After the loop: the chief calls `write` once every worker's last update is applied.

        Args:
            session: a new session. With a cluster, it is not closed: the tasks have left.
            write: writes the results; called again if a ps is lost in between.

        Raises:
            tf.errors.AbortedError: if updates were lost since the loop, because a ps was lost.
        """
        task = self._task
        if not task.hosts:
            write(session)
            return

        def check():
            if self._count is not None and session.run(self._count) < self._updates:
                raise tf.errors.AbortedError(None, None, "a parameter server has lost updates")

        check()
        self._done[task.index].open(session)
        if task.is_chief:
            for who, gate in zip(self._who, self._done):
                gate.wait(session, f"{who} to end its loop", task.flags.timeout, check)
            write(session)
            self._finished.open(session)
        else:
            whom = f"{self._who[0]} to write the results, once all workers have ended their loops,"
            self._finished.wait(session, whom, task.flags.timeout, check)
        session.closes = False  # it would wait for a ps that exits meanwhile
        for gate in self._left:  # a ps may exit before it answers the last task
            with contextlib.suppress(tf.errors.UnavailableError, tf.errors.AbortedError):
                gate.open(session)
