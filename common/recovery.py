"""How a session begins and goes on: who initialises, who waits, what if a task is lost."""

import time

import tensorflow.compat.v1 as tf

from common import hooks
from common.flags import fail


class SessionCreator(tf.train.SessionCreator):
    """What `MonitoredTrainingSession` uses, with three differences.

    A worker that is not the chief looks every 0.1 s whether the chief has initialised the
    parameters, not every 30 s; a chief that comes back to parameters that are still alive keeps
    them instead of returning to the checkpoint; a missing ps is named.
    """

    def __init__(self, task, server, saver):
        self._task, self._saver = task, saver
        self._target = server.target if server else ""
        variables = tf.global_variables()
        self._init = tf.variables_initializer(variables)
        self._ready = tf.report_uninitialized_variables(variables)
        self._local_init = tf.group(tf.local_variables_initializer(), tf.tables_initializer())

    def create_session(self) -> tf.Session:
        task, config = self._task, self._task.config
        tf.get_default_graph().finalize()
        task.wait_for_ps()
        manager = tf.train.SessionManager(
            local_init_op=self._local_init, ready_op=self._ready, recovery_wait_secs=0.1
        )
        if task.is_chief and not self._alive():
            return manager.prepare_session(
                self._target,
                init_op=self._init,
                saver=self._saver,
                checkpoint_dir=task.flags.checkpoint_dir,
                config=config,
            )
        try:
            return manager.wait_for_session(self._target, config, task.flags.timeout)
        except tf.errors.DeadlineExceededError:
            fail(f"worker 0 (the chief) did not initialise the parameters within "
                 f"{task.flags.timeout:g} s: start it, or see its log")  # fmt: skip

    def connect(self) -> tf.Session:
        """A session on parameters that are there."""
        return tf.Session(self._target, config=self._task.config)

    def _alive(self) -> bool:
        with self.connect() as session:
            return not len(session.run(self._ready))


class Loop:
    """The monitored session as the training loop sees it: `should_stop` and `run`.

    Hooks cost more time than a small step. They see one step in every 0.1 s, which is soon enough
    to log, save, notice NaN and stop; those in between go straight to TensorFlow and, while they
    are short, several in one call (`common.chain`). Every step is noted in the events, and none
    beyond `--steps` is made (`next_update`).
    """

    def __init__(self, session: tf.train.MonitoredSession, events: list[hooks.Events]):
        self._session, self._events, self._due = session, events, 0.0
        self.should_stop = session.should_stop

    def run(self, step: tf.Operation, replica: int = 0) -> None:
        """The step, once or some times; `replica` says whose, where threads share the session."""
        if replica or time.monotonic() < self._due:
            try:
                self._events[replica].run()
                return
            except (tf.errors.UnavailableError, tf.errors.AbortedError):
                pass  # a ps is lost: the monitored session will notice it, too, and recover
        self._session.run(step)
        self._due = time.monotonic() + 0.1
