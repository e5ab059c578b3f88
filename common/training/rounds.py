"""Synchronous rounds: the workers wait for each other, and together they make one update.

The queues are on the ps that counts the updates:

    tokens-K    worker K takes a token before each step: the number of updates so far
    pushed      what workers push: their index, the token they started from, a value per parameter

One round consists of the operations below:

    worker      wait -> pull, gradient -> push
    chief       gather one push of this round from each of the first `count` workers -> the update
                -> release: a token for every worker

Each worker's training loop runs its part; a separate thread in the chief's process runs the
chief's. (`tf.train.SyncReplicasOptimizer` has one queue of tokens for all: a fast worker may take
two, and the update then contains two gradients from one worker.)
"""

import json
import threading
import time
from pathlib import Path

import tensorflow.compat.v1 as tf

from common import copies
from common.record import results
from common.training import checks, graphs, measure


class Rounds(tf.train.SessionRunHook):
    """The queues of one synchronous run, and the operations on them."""

    @graphs.scope("rounds")
    def __init__(self, task, params: list[tf.Variable], global_step: tf.Variable):
        self._task, self._params, self._global_step = task, params, global_step
        self._due = 0.0
        kinds = [(tf.int32, []), (tf.int64, []), *[(p.dtype.base_dtype, p.shape) for p in params]]
        with tf.device(global_step.device):
            self._tokens = [
                tf.FIFOQueue(-1, tf.int64, [[]], shared_name=f"tokens-{k}")
                for k in range(task.flags.workers)
            ]
            # After the last update nobody empties it, and a late worker may still push twice: what
            # it was computing, and once more if its last token was still in its queue.
            most = 2 * task.flags.workers
            self._pushed = tf.FIFOQueue(most, *zip(*kinds), shared_name="pushed")
            self._round = global_step.read_value()  # the current round
            # Runs when the session begins: every worker starts with a token. A restarted chief
            # gives every worker a new one, since it may have died before releasing them.
            mine = self._tokens if task.is_chief else [self._tokens[task.index]]
            self.start = [self._give(mine, self._round)]
            # Ends the run: workers that wait for a token, now or later, get OutOfRangeError.
            self.close = tf.group(*[queue.close() for queue in self._tokens])

    def _give(self, queues, token: tf.Tensor) -> tf.Operation:
        """Puts a token into each queue. After the last update, closes them, which ends the run."""
        return tf.cond(
            token < self._task.flags.steps,
            lambda: tf.group(*[queue.enqueue(token) for queue in queues]),
            lambda: tf.group(*[queue.close() for queue in queues]),
        )

    # The worker's part of a round.

    @graphs.scope("wait")
    def wait(self) -> tf.Tensor:
        """Waits for this worker's token: the number of updates so far, int64, on the ps.

        A late worker finds several tokens; only the newest counts.
        """
        mine = self._tokens[self._task.index]
        with tf.device(self._global_step.device):
            asked_at = measure.now([])
            with tf.control_dependencies([asked_at]):
                first = mine.dequeue()
            with tf.control_dependencies([first]):
                others = mine.dequeue_many(mine.size())
            token = tf.reduce_max(tf.concat([[first], others], axis=0))
        measure.note("asked", token, asked_at)
        return token

    @graphs.scope("push")
    def push(self, values: list[tf.Tensor], token: tf.Tensor) -> tf.Operation:
        """Sends `values`, one per parameter, and the token from which they were computed."""
        arrived = copies.send(values, self._params, self._global_step.device)
        measure.note("computed", token, measure.noted("computed", arrived[0]))
        with tf.device(self._global_step.device):
            return self._pushed.enqueue([self._task.index, token, *arrived])

    # The chief's part.

    @graphs.scope("gather")
    def gather(self, count: int) -> list[tf.Tensor]:
        """Waits for one push of this round from each of the first `count` workers.

        Drops pushes computed from an older token, and a second push by a restarted worker.

        Returns:
            The sum of the pushed values, for each parameter, on the ps.
        """

        def take_one(who, total):
            worker, token, *values = self._pushed.dequeue()
            counts = tf.equal(token, self._round) & ~who[worker]
            total = tf.cond(counts, lambda: [t + v for t, v in zip(total, values)], lambda: total)
            return who | tf.one_hot(worker, self._task.flags.workers, counts, False), total

        def incomplete(who, _):
            return tf.math.count_nonzero(who) < count

        with tf.device(self._global_step.device):
            start = (
                tf.zeros([self._task.flags.workers], tf.bool),
                [tf.zeros(p.shape) for p in self._params],
            )
            self._who, total = tf.while_loop(incomplete, take_one, start, parallel_iterations=1)
        return total

    @graphs.scope("release")
    def release(self, update: tf.Operation, number: tf.Tensor) -> None:
        """Gives every worker a token for the next round once the update is applied."""
        checks.check_updates(self._params, update, number)
        with tf.device(self._global_step.device), tf.control_dependencies([update]):
            released = self._give(self._tokens, number + 1)
        counted_at = measure.noted("counted", number)
        row = [number, counted_at, *tf.unstack(self._who)]
        rows = measure.Rows(row, self._global_step.device, "rounds")
        self._ends, self._read = [released.op, rows.put], rows.read
        self._several = None
        if self._task.flags.steps_per_execution > 1:
            from common.training.several import copies

            chain = copies([released.op], [rows.put], self._task.flags.steps_per_execution)
            self._several = [chain[-1][end] for end in self._ends]

    # As a hook: the chief's thread makes one update after another, alongside the training loop.

    def after_create_session(self, session, coord):
        """Also called after a recovery, when the thread of the lost session has ended."""
        if self._task.is_chief:
            threading.Thread(target=self._run, args=(session, coord), daemon=True).start()

    def _run(self, session, coord):
        flags, path = self._task.flags, Path(self._task.flags.results, "updates.jsonl")
        try:
            made = session.run(self._round)
            one = session.make_callable(self._ends)
            several = session.make_callable(self._several or self._ends)
            with results.append(path) as file:
                self._note(file, session.run(self._read))  # left by a killed chief
                while made < flags.steps and not coord.should_stop():
                    whole = flags.steps - made >= flags.steps_per_execution
                    several() if whole else one()
                    made += flags.steps_per_execution if whole else 1
                    if made == flags.steps or time.time() > self._due:
                        self._note(file, session.run(self._read))
            session.run(self.close)
        except (tf.errors.UnavailableError, tf.errors.AbortedError):
            pass  # a ps is lost: the training loop notices too, and recovers the session
        except (tf.errors.CancelledError, RuntimeError):
            pass  # the session was closed: the run ends early
        except Exception as error:  # an error here also ends the training loop
            coord.request_stop(error)

    def _note(self, file, rows) -> None:
        """Writes which workers' pushes each update contains."""
        self._due = time.time() + 0.1
        for number, counted_at, *who in rows.tolist():
            workers = [k for k, there in enumerate(who) if there]
            line = {"time": counted_at, "global_step": int(number) + 1, "workers": workers}
            file.write(json.dumps(line) + "\n")
