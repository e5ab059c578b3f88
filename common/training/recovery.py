"""How a session begins and recovers: who initialises, who waits, what if a task is lost."""

import tensorflow.compat.v1 as tf

from common import fail
from common.training import results


class SessionCreator(tf.train.SessionCreator):
    """What `MonitoredTrainingSession` uses, with three differences.

    A worker looks every 0.1 s whether the chief has initialised the parameters, not every 30 s; a
    chief that comes back keeps parameters that are still alive, instead of returning to the
    checkpoint; a missing ps is named.
    """

    def __init__(self, task, server, saver):
        self._task, self._saver = task, saver
        self._target = server.target if server else ""
        variables = tf.global_variables()
        self._init = tf.variables_initializer(variables)
        self._ready = tf.report_uninitialized_variables(variables)
        # Input pipelines are found by their kind, so that a script needs to register none.
        operations = tf.get_default_graph().get_operations()
        pipelines = [op for op in operations if op.type == "MakeIterator"]
        self._local_init = tf.group(
            tf.local_variables_initializer(), tf.tables_initializer(), *pipelines
        )

    def create_session(self) -> tf.Session:
        task, config = self._task, self._task.config
        tf.get_default_graph().finalize()
        task.wait_for_ps()
        manager = tf.train.SessionManager(
            local_init_op=self._local_init, ready_op=self._ready, recovery_wait_secs=0.1
        )
        if task.is_chief:
            with self.connect() as session:
                missing = session.run(self._ready)
            if len(missing):
                return manager.prepare_session(
                    self._target, self._init, self._saver, task.flags.checkpoint_dir, config=config
                )
        try:
            return manager.wait_for_session(self._target, config, task.flags.timeout)
        except tf.errors.DeadlineExceededError:
            fail(f"worker 0 (the chief) did not initialise the parameters within "
                 f"{task.flags.timeout:g} s: start it, or see its log")  # fmt: skip

    def connect(self) -> tf.Session:
        """A session on parameters that are there."""
        return tf.Session(self._target, config=self._task.config)


def check_checkpoint(directory: str) -> None:
    """Ends the process with one sentence if the newest checkpoint does not fit."""
    newest = tf.train.latest_checkpoint(directory)
    if newest is None:
        results.create(directory, "--checkpoint_dir")
        return
    saved = tf.train.load_checkpoint(newest).get_variable_to_shape_map()
    for variable in tf.global_variables():
        name, shape = variable.op.name, variable.shape.as_list()
        had = saved.get(name, "missing")
        if had != shape:
            fail(f"the checkpoint {newest} is of another model or optimizer ({name} is {had} "
                 f"there, {shape} here): name another --checkpoint_dir")  # fmt: skip
