"""How a session starts, and recovers from a lost task: who initialises, who waits."""

import tensorflow.compat.v1 as tf

from common import fail
from common.told import addresses


class SessionCreator(tf.train.SessionCreator):
    """Like that of `MonitoredTrainingSession`, with three differences.

    A worker checks every 0.1 s, not every 30 s, whether the chief has initialised the parameters; a
    restarted chief keeps parameters that are still alive, and does not go back to the checkpoint;
    the error for a missing ps names it.
    """

    def __init__(self, task, server, saver):
        self._task, self._saver = task, saver
        self._target = server.target if server else ""
        variables = tf.global_variables()
        self._init = tf.variables_initializer(variables)
        self._ready = tf.report_uninitialized_variables(variables)
        # The input pipelines are among the tables.
        self._local_init = tf.group(tf.local_variables_initializer(), tf.tables_initializer())
        with tf.name_scope("count"):
            self._count, self._first = tf.train.get_global_step().read_value(), True

    def create_session(self) -> tf.Session:
        session, task = self._new_session(), self._task
        count = int(session.run(self._count))
        if self._first and task.is_chief:
            from common.training import checkpoints

            checkpoints.resumed(task, count)
        elif not self._first and task.hosts:
            what = "a worker or a ps" if "chief" in task.hosts else "a parameter server"
            print(f"> [{task.name}] lost {what}: continues at update {count}", flush=True)
        self._first = False
        return session

    def _new_session(self) -> tf.Session:
        task, config = self._task, self._task.config
        tf.get_default_graph().finalize()
        for job, k in task.servers:  # or a one-line error that names the missing one
            addresses.wait_for(f"{job} {k}", task.hosts[job][k], task.flags.timeout)
        manager = tf.train.SessionManager(
            local_init_op=self._local_init, ready_op=self._ready, recovery_wait_secs=0.1
        )
        if task.is_chief:
            with self.connect() as session:
                missing = session.run(self._ready)
            if len(missing):
                from common.training import checkpoints

                newest = checkpoints.newest(task.flags.checkpoint_dir)
                return manager.prepare_session(
                    self._target, self._init, self._saver, config=config,
                    checkpoint_filename_with_path=newest,
                )  # fmt: skip
        for seconds in (5, task.flags.timeout):
            try:
                return manager.wait_for_session(self._target, config, seconds)
            except tf.errors.DeadlineExceededError:
                print("waiting for worker 0 to initialise the parameters ...", flush=True)
        fail(f"worker 0 (the chief) did not initialise the parameters within "
             f"{task.flags.timeout:g} s: start it, or see its log")  # fmt: skip

    def connect(self) -> tf.Session:
        """A session on parameters that already exist."""
        return tf.Session(self._target, config=self._task.config)
