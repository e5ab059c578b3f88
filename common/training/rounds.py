"""Synchronous rounds: the workers wait for each other, and together they make one update.

The queues are on the ps; those of the tokens on the ps that counts the updates:

    tokens-K    worker K takes a token before each step: the number of updates so far
    pushed-J    what the workers push to ps J: their index, the number of their token, and a value
                for each parameter (or for each of `sent`) on this ps
    released    not a queue, but the number of the newest token: so many updates are complete, while
                `global_step` may have counted one that is still being applied

One round consists of the operations below:

    worker      wait -> pull, gradient, send -> push
    chief       gather one push of this round from each of the first `count` workers -> the update
                -> release: a token for every worker

Each worker's training loop runs its part; a separate thread in the chief's process runs the
chief's. (`tf.train.SyncReplicasOptimizer` has one queue of tokens for all: a fast worker may take
two, and the update then contains two gradients from one worker.)
"""

import json
import threading
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TextIO

import tensorflow.compat.v1 as tf

from common.graph import aborts, clock
from common.graph.rows import Rows, read_all
from common.graph.scope import scope
from common.record import results
from common.record.words import ABORTED
from common.records import Gathered, Push, Token, Update
from common.training import checks, several


class Rounds:
    """The queues of one synchronous run, and the operations on them."""

    @scope("rounds")
    def __init__(
        self,
        task,
        params: Sequence[tf.Variable],
        global_step: tf.Variable,
        sent: Sequence[tf.Variable] | None = None,
    ):
        """`sent`: variables on the ps, of the types and shapes of what the workers push, if these
        are not those of the parameters."""
        self._task, self._params, self._global_step = task, params, global_step
        self._sent = params if sent is None else sent
        places = dict.fromkeys([global_step.device, *[each.device for each in self._sent]])
        # What is sent to which ps. The first ps, which counts, decides whose pushes count.
        self._on = {place: [i for i, each in enumerate(self._sent) if each.device == place]
                    for place in places}  # fmt: skip
        with tf.device(global_step.device):
            self._tokens = [
                tf.FIFOQueue(-1, tf.int64, [[]], shared_name=f"tokens-{k}")
                for k in range(task.flags.workers)
            ]
            self._round = global_step.read_value()  # the current round
            # In no collection: it is neither saved nor initialised; the chief's `start` sets it.
            self._released = tf.Variable(
                tf.constant(0, tf.int64), trainable=False, collections=[], name="released"
            )
            # A worker gives itself a token when its session begins, and after an aborted step. (If
            # the chief has not begun yet, it will give every worker one.)
            self.again = tf.cond(
                self._released.is_initialized(),
                lambda: self._give([self._tokens[task.index]], self._released.read_value()),
                tf.no_op,
            ).op
            # A chief that begins gives every worker a token: before a restart, it may have died
            # between the update and its tokens. No update is being applied then.
            with tf.control_dependencies([self._released.assign(self._round)]):
                first = self._give(self._tokens, self._released.read_value())
            self.start = first if task.is_chief else self.again
            # Ends the run: workers that wait for a token, now or later, get OutOfRangeError.
            self.close = tf.group(*map(_close, self._tokens))
        self._pushed = {}
        for j, (place, indices) in enumerate(self._on.items()):
            own = [(self._sent[i].dtype.base_dtype, self._sent[i].shape) for i in indices]
            kinds = [(tf.int32, []), (tf.int64, []), *own]
            with tf.device(place):
                # After the last update nobody empties it, and a late worker may still push twice:
                # what it was computing, and once more if its last token was still in its queue.
                self._pushed[place] = tf.FIFOQueue(
                    2 * task.flags.workers, *zip(*kinds), shared_name=f"pushed-{j}"
                )
        self.chief: Chief | None = None  # `release` completes it

    def _give(self, queues: Sequence[tf.FIFOQueue], number: tf.Tensor) -> tf.Operation:
        """Puts a token into each queue. After the last update, closes them, which ends the run."""
        return tf.cond(
            number < self._task.flags.steps,
            lambda: tf.group(*[queue.enqueue(number) for queue in queues]),
            lambda: tf.group(*map(_close, queues)),
        ).op

    # The worker's part of a round.

    @scope("wait")
    def wait(self) -> Token:
        """Waits for this worker's token. A late worker finds several; only the newest counts."""
        mine = self._tokens[self._task.index]
        with tf.device(self._global_step.device):
            asked_at = clock.now([])
            with tf.control_dependencies([asked_at]):
                first = mine.dequeue()
            with tf.control_dependencies([first]):
                others = mine.dequeue_many(mine.size())
            number = tf.reduce_max(tf.concat([[first], others], axis=0))
        return Token(number, asked_at)

    @scope("push")
    def push(self, push: Push, token: Token) -> tf.Operation:
        """Puts what `copies.send` has sent into the queues, with the token that it belongs to.

        Raises:
            ValueError: if the values have been changed on a worker after they were sent, or are
                rows of tables.
        """
        checks.check_sent(self._sent, push)
        puts = []
        for place, indices in self._on.items():
            with tf.device(place):
                own = [push.values[i] for i in indices]
                puts.append(self._pushed[place].enqueue([self._task.index, token.number, *own]))
        return tf.group(*puts) if len(puts) > 1 else puts[0]

    # The chief's part.

    @scope("gather")
    def gather(self, count: int, stacked: bool = False) -> Gathered:
        """Waits for one push of this round from each of the first `count` workers.

        Drops pushes with an older token, and a second push by a restarted worker.

        Args:
            count: how many workers' pushes an update needs.
            stacked: whether to keep what each worker has sent, instead of the sum.
        """
        values: list = [None] * len(self._sent)
        wanted = None  # on the first ps: whoever comes first
        for place, indices in self._on.items():
            with tf.device(place):
                who, found = self._take(place, indices, count, wanted, stacked)
            wanted = who if wanted is None else wanted
            for i, value in zip(indices, found, strict=True):
                values[i] = value
        return Gathered(values, wanted)

    def _take(
        self, place: str, indices: list[int], count: int, wanted: tf.Tensor | None, stacked: bool
    ):
        """On one ps: which workers' pushes it has taken, and for each parameter their sum, or what
        each worker has sent."""
        workers = self._task.flags.workers

        def row_of(worker, value):  # all other rows are 0
            rows = tf.zeros([workers, *value.shape], value.dtype)
            return tf.tensor_scatter_nd_update(rows, [[worker]], [value])

        def take_one(who, sums):
            worker, number, *pushed = self._pushed[place].dequeue()
            counts = tf.equal(number, self._round) & ~who[worker]
            if wanted is not None:
                counts &= wanted[worker]
            if stacked:  # the sum of such arrays has all rows
                pushed = [row_of(worker, value) for value in pushed]
            sums = tf.cond(counts, lambda: [s + v for s, v in zip(sums, pushed)], lambda: sums)
            return who | tf.one_hot(worker, workers, counts, False), sums

        def incomplete(who, _):
            return tf.math.count_nonzero(who) < count

        each = [workers] if stacked else []
        zeros = [
            tf.zeros([*each, *self._sent[i].shape], self._sent[i].dtype.base_dtype) for i in indices
        ]
        start = tf.zeros([workers], tf.bool), zeros
        # One at a time: each iteration needs to know what the one before has taken.
        return tf.while_loop(incomplete, take_one, start, parallel_iterations=1)

    @scope("release")
    def release(self, applied: tf.Operation, update: Update, gathered: Gathered) -> None:
        """Gives every worker a token for the next round once the update is applied.

        Raises:
            ValueError: as in `checks.check_update`.
        """
        checks.check_update(self._params, self._global_step, applied, update)
        with tf.device(self._global_step.device):
            with tf.control_dependencies([applied]):
                kept = self._released.assign(update.number + 1)
            with tf.control_dependencies([kept]):
                released = self._give(self._tokens, update.number + 1)
            who = tf.unstack(gathered.who)
        rows = Rows([update.number, update.counted_at, *who], self._global_step.device, "rounds")
        self.chief = Chief(self._task, self._round, self.start, self.close, released, rows)


def _close(queue: tf.FIFOQueue) -> tf.Operation:
    """Closes a queue, unless it is closed already."""
    return tf.cond(queue.is_closed(), tf.no_op, lambda: tf.group(queue.close())).op


class Chief(tf.train.SessionRunHook):
    """The chief's thread: it makes one update after another, alongside the training loop."""

    def __init__(
        self,
        task,
        made: tf.Tensor,
        start: tf.Operation,
        close: tf.Operation,
        update: tf.Operation,
        rows: Rows,
    ):
        """`made`: the number of updates so far; `update` makes one, and `rows` has its row; `start`
        and `close` as in `Rounds`."""
        self._task, self._made, self._start, self._close = task, made, start, close
        self._update, self._rows = [update, rows.put], rows
        self._several = self._update
        self._path, self._lock = Path(task.flags.results, "updates.jsonl"), threading.Lock()
        self._file: TextIO | None = None
        if task.flags.steps_per_execution > 1:
            chain = several.copies([update], [rows.put], task.flags.steps_per_execution)
            self._several = [chain[-1][op] for op in self._update]

    def after_create_session(self, session, coord):
        """Also called after a recovery, when the thread of the lost session has ended."""
        threading.Thread(target=self._run, args=(session, coord), daemon=True).start()

    def end(self, session):
        """The training loop may end before the thread has read the last rows."""
        self._note(session)

    def _run(self, session, coord):
        try:
            self._make_updates(session, coord)
            session.run(self._close)
        except (tf.errors.UnavailableError, tf.errors.AbortedError):
            pass  # a ps is lost: the training loop notices too, and recovers the session
        except (tf.errors.CancelledError, RuntimeError):
            pass  # the session was closed: the run ends early
        except Exception as error:  # an error here also ends the training loop
            coord.request_stop(error)

    def _make_updates(self, session, coord) -> None:
        flags = self._task.flags
        made, due = int(session.run(self._made)), 0.0
        one, many = session.make_callable(self._update), session.make_callable(self._several)
        known = {line["time"] for line in results.Tail(self._path).read()}
        self._note(session, known)  # left by a killed chief
        while made < flags.steps and not coord.should_stop():
            whole = flags.steps - made >= flags.steps_per_execution
            try:
                many() if whole else one()
                made += flags.steps_per_execution if whole else 1
            except aborts.CallAborted:
                print(ABORTED, flush=True)
                # Was the update made? The count says it. Its pushes or its tokens may be lost: with
                # new tokens, every worker pushes again, and `gather` drops what it has already.
                made = int(session.run(self._made))
                session.run(self._start)
            if made >= flags.steps or time.time() > due:
                due = time.time() + 0.25
                self._note(session)

    def _note(self, session, known: Collection[float] = ()) -> None:
        """Writes which workers' pushes each update contains; `known` are the times of lines that
        the file has."""
        with self._lock:
            self._file = self._file or results.append(self._path)
            for number, counted_at, *who in read_all([self._rows], session)[0]:
                workers = [k for k, there in enumerate(who) if there]
                line = {"time": counted_at, "global_step": int(number) + 1, "workers": workers}
                if counted_at not in known:
                    self._file.write(json.dumps(line) + "\n")
