"""The session of a client with several threads, which all recover if one of them loses a task.

The threads share one session, so one that loses a task must replace the session for all. The
others may be in the middle of a step: it is aborted, and they continue in the new session.
"""

import threading

import tensorflow.compat.v1 as tf

from common.training.loop import Session


class _OneAtATime:
    """A monitored session. While one thread recovers it, the others wait."""

    def __init__(self, monitored: tf.train.MonitoredSession):
        self._monitored, self.lock, self.graph = monitored, threading.RLock(), monitored.graph

    def run(self, *args):
        with self.lock, self.graph.as_default():  # each thread has its own default
            return self._monitored.run(*args)

    def run_step_fn(self, step_fn):
        with self.lock:
            return self._monitored.run_step_fn(step_fn)

    def should_stop(self) -> bool:
        with self.lock:  # in the middle of a recovery it would say yes
            return self._monitored.should_stop()


class Shared(Session):
    """The session that each thread's loop calls `sess`."""

    def __init__(self, monitored: tf.train.MonitoredSession, *more):
        super().__init__(_OneAtATime(monitored), *more)

    def run(self, *args, **more):
        """Like `tf.Session.run`."""
        while True:
            session = self._steps[0].session
            try:
                return super().run(*args, **more)
            except (tf.errors.OpError, RuntimeError):
                with self._monitored.lock:
                    if self._steps[0].session is session:  # no other thread has recovered it
                        raise
