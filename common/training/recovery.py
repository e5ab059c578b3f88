"""How a session starts, and recovers from a lost task: who initialises, who waits."""

import time

import tensorflow.compat.v1 as tf

from common import data, fail
from common.graph.aborts import Connection, watch
from common.told import addresses
from common.training import checkpoints

PAUSE = 0.1  # seconds between two looks whether the chief has initialised the parameters


class SessionCreator(tf.train.SessionCreator):
    """Like that of `MonitoredTrainingSession`, with four differences.

    A worker checks every 0.1 s, not every 30 s, whether the chief has initialised the parameters; a
    restarted chief keeps parameters that are still alive, and does not go back to the checkpoint;
    the error for a missing ps names it; and its sessions know an abort from a lost task.

    Attributes:
        replaced: whether a server has been replaced since the session before, so that what was only
            in its memory is gone; true for the first session.
    """

    def __init__(self, task, server: tf.train.Server | None, saver: tf.train.Saver | None):
        """`saver`: the chief's."""
        self._task, self._saver = task, saver
        self._target = server.target if server else ""
        variables = tf.global_variables()
        self._init = tf.variables_initializer(variables)
        self._missing = tf.report_uninitialized_variables(variables)
        # The input pipelines are among the tables.
        self._local_init = tf.group(tf.local_variables_initializer(), tf.tables_initializer())
        with tf.name_scope("count"):
            self._count = tf.train.get_global_step().read_value()
        watch(task.hosts)
        self._seen: set[int] | None = None  # the servers of the last session
        self.replaced = True

    def create_session(self) -> Connection:
        tf.get_default_graph().finalize()
        for job, k in self._task.servers:  # or a one-line error that names the missing one
            timeout = self._task.flags.timeout
            addresses.wait_for(f"{job} {k}", self._task.hosts[job][k], timeout)
        session = self._initialised() if self._task.is_chief else self._wait_for_the_chief()
        try:
            session.run(self._local_init)
        except tf.errors.OutOfRangeError as error:
            if data.is_end(error):
                fail(f"the data set of {self._task.name} has no element: see its shard and filters")
            raise
        # A server that starts again gives its devices another number.
        servers = {device.incarnation for device in session.list_devices()}
        first, self.replaced = self._seen is None, servers != self._seen
        self._seen = servers
        self._say(int(session.run(self._count)), first)
        return session

    def _say(self, count: int, first: bool) -> None:
        """Tells the screen where a run continues, after `count` updates."""
        task = self._task
        if first and task.is_chief:
            checkpoints.resumed(task, count)
        elif not first and task.hosts:
            what = "a worker or a ps" if "chief" in task.hosts else "a parameter server"
            how = what if self.replaced else f"the connection to {what}"
            print(f"> [{task.name}] lost {how}: continues at update {count}", flush=True)

    def _initialised(self) -> Connection:
        """The chief's session: it restores or initialises the parameters if they are gone."""
        session = self.connect()
        if len(session.run(self._missing)):
            newest = checkpoints.newest(self._task.flags.checkpoint_dir)
            if newest:
                self._saver.restore(session, newest)
            else:
                session.run(self._init)
        return session

    def _wait_for_the_chief(self) -> Connection:
        """A worker's session, once the chief has initialised the parameters."""
        begun = time.monotonic()
        timeout, said = self._task.flags.timeout, False
        while time.monotonic() < begun + timeout:
            session = self.connect()  # a new one each time: an old one may know a ps that is lost
            if not len(session.run(self._missing)):
                return session
            session.close()
            if not said and time.monotonic() > begun + 5:
                print("waiting for worker 0 to initialise the parameters ...", flush=True)
                said = True
            time.sleep(PAUSE)
        fail(f"worker 0 (the chief) did not initialise the parameters within {timeout:g} s: "
             "start it, or see its log")  # fmt: skip

    def connect(self) -> Connection:
        """A session on parameters that already exist."""
        return Connection(self._target, self._task.config, first=self._task.first)
