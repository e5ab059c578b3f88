"""The state of a search on the ps: who has which trial, the results, the finished networks."""

import itertools
import json
import time
from typing import NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from common import fail, models
from common.gates import Gate
from common.graph.aborts import Connection
from common.told import addresses
from common.training import checkpoints
from common.training.together import StartAndStop

PS = "/job:ps/task:0"
# Signs of a lost ps: no answer, or a new ps without values yet (FailedPrecondition).
LOST = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.FailedPreconditionError)


class Result(NamedTuple):
    """The result of a trial; `accuracy` and `loss` are on the validation set."""

    accuracy: float
    loss: float
    updates: int
    seconds: float
    worker: int
    arrays: list[np.ndarray]  # the parameters, in model order


class Search:
    """A worker's access to the search. If the ps is lost, each call waits until it is back.

    A restarted ps is empty. The chief restores the newest checkpoint. Then every worker hands in
    its finished trials again and reclaims its current one. Nobody gets a new trial until every
    worker has done this.
    """

    def __init__(self, task, server: tf.train.Server, settings: list):
        """`settings` are the flags of each trial, in the same order in every worker."""
        self._task, self._server, self._session = task, server, None
        self._lost = False  # the ps
        self._graph = tf.get_default_graph()  # train() makes another graph the default
        self._mine: dict[int, Result] = {}  # what this process has finished
        self._trial: int | None = None  # its current trial
        self._due = 0.0
        keys = ("learning_rate", "hidden", "seed", "model", "data", "steps", "batch_size")
        self._text = json.dumps([[vars(flags)[key] for key in keys] for flags in settings])
        with tf.device(PS):
            # Each trial's owner; -1: nobody. Checkpoints leave it out: workers that are alive
            # claim again after a restart.
            self._owners = tf.Variable(lambda: tf.fill([len(settings)], -1), name="owners",
                                       collections=[tf.GraphKeys.LOCAL_VARIABLES])  # fmt: skip
            self._finished = tf.Variable(lambda: tf.fill([len(settings)], False), name="finished")
            self._rows = tf.Variable(lambda: tf.zeros([len(settings), 5], tf.float64), name="rows")
            text = tf.Variable(self._text, name="settings")
            self._networks = []
            for trial, flags in enumerate(settings):
                with tf.name_scope(f"trial_{trial}"):
                    self._networks.append(models.create(flags))
            self._which, self._row = tf.placeholder(tf.int64, []), tf.placeholder(tf.float64, [5])
            self._next = self._claim()
            self._take = self._owners.scatter_nd_update([[self._which]], [task.index])
            self._keep = [self._hand_in(params) for params in self._networks]
        kept = [self._finished, self._rows, text, *itertools.chain(*self._networks)]
        self._start = tf.variables_initializer([self._owners, *kept])
        self._saver = checkpoints.Saver(kept)
        self._saved = 0  # finished trials in the newest checkpoint
        self._ready = {who: Gate(f"ready-{who}") for who in task.clients}
        self._together = StartAndStop(task)

    @property
    def names(self) -> list[str]:
        """The names of a network's parameters, in model order."""
        return [param.op.name.rpartition("/")[2] for param in self._networks[0]]

    def _claim(self) -> tf.Tensor:
        """The next trial for this worker, [1]; of shape [0] if none is left. A lock on the ps makes
        this atomic: a second worker looks only after the first has claimed."""

        def look():
            owners, finished = self._owners.read_value(), self._finished.read_value()
            # First the trial that this worker had when it was killed, then any free one.
            again = tf.where(tf.equal(owners, self._task.index) & ~finished)
            free = tf.where(tf.equal(owners, -1) & ~finished)
            found = tf.concat([again, free], axis=0)[:1]
            mine = tf.fill([tf.shape(found)[0]], self._task.index)
            with tf.control_dependencies([self._owners.scatter_nd_update(found, mine)]):
                return tf.identity(found[:, 0])

        return tf.CriticalSection(shared_name="claims").execute(look)

    def _hand_in(self, params: list) -> tuple[list, tf.Operation]:
        """Placeholders for a network's parameters, and the operation that stores them. It marks the
        trial as finished only after it has written the parameters and the row."""
        arrays = [tf.placeholder(param.dtype, param.shape) for param in params]
        with tf.control_dependencies([p.assign(a).op for p, a in zip(params, arrays)]):
            noted = self._rows.scatter_nd_update([[self._which]], [self._row])
        with tf.control_dependencies([noted]):
            return arrays, self._finished.scatter_nd_update([[self._which]], [True]).op

    def claim(self) -> int | None:
        """This worker's next trial, or None if all are taken."""

        def take(session):
            for who, gate in self._ready.items():
                gate.wait(session, who, self._task.flags.timeout)
            return session.run(self._next)

        found = self._safely(take)
        self._trial = int(found[0]) if len(found) else None
        return self._trial

    def stay_in_touch(self) -> None:
        """Call it in every step; it acts once a second."""
        if time.monotonic() > self._due:
            self._safely(self._check_and_save)
            self._due = time.monotonic() + 1

    def hand_in(self, trial: int, result: Result) -> None:
        """Stores the result of a finished trial."""
        self._mine[trial], self._trial = result, None
        self._safely(lambda session: self._write(session, trial))
        self._safely(self._check_and_save)

    def finish(self, write) -> None:
        """Waits until all workers are here. The chief calls `write(results)` with each trial's
        `Result`; then all leave."""

        def last(session):
            self._check_and_save(session)
            write(self._results(session))

        self._safely(lambda session: self._together.finish(session, last))

    def _safely(self, what):
        """Returns `what(session)`. If the ps is lost meanwhile, tries again when it is back."""
        while True:
            try:
                if self._session is None:
                    self._connect()
                return what(self._session)
            except LOST:
                print(f"{self._task.name} lost the ps; reconnecting", flush=True)
                self._session, self._lost = None, True

    def _connect(self) -> None:
        """Opens a session, and restores on the ps everything that this worker knows."""
        task = self._task
        addresses.wait_for("ps 0", task.hosts["ps"][0], task.flags.timeout)
        # It repeats a call that TensorFlow has aborted; to make one twice changes nothing here.
        session = Connection(self._server.target, task.config, self._graph)
        session.closes = False  # to close it may take minutes without the ps
        ready = self._ready["worker 0"]  # the chief's
        if not task.is_chief:
            ready.wait(session, "worker 0", task.flags.timeout)
        elif not ready.is_open(session):  # the ps is empty
            session.run(self._start)
            self._restore(session)
        for trial in self._mine:
            self._write(session, trial)
        if self._trial is not None:
            session.run(self._take, {self._which: self._trial})
        self._ready[task.name].open(session)
        if self._lost:
            where = "the next trial" if self._trial is None else f"trial {self._trial}"
            print(f"> [{task.name}] lost the ps: continues with {where}", flush=True)
        self._session, self._lost = session, False

    def _write(self, session, trial: int) -> None:
        *row, arrays = self._mine[trial]
        places, keep = self._keep[trial]
        feed = {self._which: trial, self._row: row, **dict(zip(places, arrays, strict=True))}
        session.run(keep, feed)

    def _results(self, session) -> list[Result]:
        rows, networks = session.run([self._rows, self._networks])
        return [
            Result(accuracy, loss, int(updates), seconds, int(worker), arrays)
            for (accuracy, loss, updates, seconds, worker), arrays in zip(rows, networks)
        ]

    def _check_and_save(self, session) -> None:
        """Notices a lost ps; in the chief, saves if a trial finished since the last checkpoint."""
        count = int(session.run(self._finished).sum())
        if self._task.is_chief:
            where = self._task.flags.checkpoint_dir
            if count > self._saved:
                self._saver.save(session, f"{where}/model.ckpt", count, write_meta_graph=False)
                self._saved = count

    def _restore(self, session) -> None:
        newest = checkpoints.newest(self._task.flags.checkpoint_dir)
        if newest is None:
            return
        if checkpoints.values(newest).get("settings") != self._text.encode():
            fail(f"the checkpoint {newest} is from another search: "
                 "use a different --checkpoint_dir")  # fmt: skip
        self._saver.restore(session, newest)
        self._saved = int(newest.rpartition("-")[2])
        trials = len(self._networks)
        print(f"> [{self._task.name}] continues: {self._saved} of {trials} trials are finished",
              flush=True)  # fmt: skip
