"""The workers' clocks: who may begin a step, and who must wait for the slowest worker.

All of this is on the ps that counts the updates:

    finished    how many steps each worker has finished, [workers]
    tokens-K    a queue. A token tells worker K, if it waits, that the slowest worker has moved on.
    stopped     a queue that is always empty. It is closed when the run stops early.

Only `finished` says who may begin: a worker that takes a token looks there again. So a token too
many does no harm, and whoever may have taken or lost one (after a restart, or an aborted step)
gives every worker a new one.

A killed worker finds its own clock where it was, and repeats its unfinished step.
No checkpoint contains the clocks: if this ps is lost, all workers begin again at 0.
"""

import tensorflow.compat.v1 as tf

from common.graph import clock
from common.graph.scope import scope
from common.records import Token


class Clocks:
    """The clocks of one run, and the operations on them.

    Attributes:
        start: begins a session. The chief's sets the clocks to 0, unless they run already.
        again: follows an aborted step.
        close: ends the loops of the workers that wait.
    """

    @scope("clocks")
    def __init__(self, task, global_step: tf.Variable):
        self._flags, self._me, self._global_step = task.flags, task.index, global_step
        zeros = tf.zeros([task.flags.workers], tf.int64)
        with tf.device(global_step.device):
            self._finished = tf.Variable(zeros, trainable=False, collections=[], name="finished")
            self._tokens = [
                tf.FIFOQueue(-1, tf.bool, [[]], shared_name=f"tokens-{k}")
                for k in range(task.flags.workers)
            ]
            self._stopped = tf.FIFOQueue(1, tf.bool, [[]], shared_name="stopped")
            set_to_0 = []
            if task.is_chief:
                there = self._finished.is_initialized()
                first = tf.cond(there, tf.no_op, lambda: self._finished.assign(zeros).op)
                set_to_0 = [first.op]
            with tf.control_dependencies(set_to_0):
                self.start = self._wake()
            self.again = self._wake()
            closed = tf.cond(
                self._stopped.is_closed(), tf.no_op, lambda: tf.group(self._stopped.close())
            )
            with tf.control_dependencies([closed.op]):
                self.close = self._wake()

    @scope("wait")
    def wait(self) -> Token:
        """Waits until this worker is at most `--max_staleness` steps ahead of the slowest."""
        mine = self._tokens[self._me]

        def take_token(_):
            with tf.control_dependencies([mine.dequeue()]):
                stopped = self._stopped.is_closed()
            # To take from a closed queue raises OutOfRangeError, which ends the loop.
            end = tf.cond(stopped, lambda: tf.group(self._stopped.dequeue()), tf.no_op).op
            with tf.control_dependencies([end]):
                return self._lead() * tf.cast(~self._ended(), tf.int64)  # ended: 0 leaves the loop

        with tf.device(self._global_step.device):
            asked_at = clock.now([])
            with tf.control_dependencies([asked_at]):
                lead = self._lead()
            lead = tf.while_loop(lambda n: n > self._flags.max_staleness, take_token, [lead])
        return Token(lead, asked_at)

    @scope("tick")
    def tick(self, applied: tf.Operation) -> tf.Operation:
        """This worker has finished a step, once its update is `applied`. If it was the slowest, or
        the update was the last, whoever waits may go on."""
        with tf.device(self._global_step.device):
            with tf.control_dependencies([applied]):
                ticked = self._finished.scatter_add(
                    tf.IndexedSlices(tf.ones([1], tf.int64), [self._me])
                )
            with tf.control_dependencies([ticked]):
                others_may = tf.equal(self._lead(), 0) | self._ended()
            return tf.cond(others_may, self._wake, tf.no_op).op

    def _lead(self) -> tf.Tensor:
        """How many steps this worker leads the slowest by; infinite until the chief has begun."""

        def known():
            finished = self._finished.read_value()
            return finished[self._me] - tf.reduce_min(finished)

        return tf.cond(self._finished.is_initialized(), known, lambda: tf.int64.max)

    def _ended(self) -> tf.Tensor:
        """Whether the last update has been counted: then nobody waits any more, and
        `session.next_update` ends every worker's loop."""
        return self._global_step.read_value() >= self._flags.steps

    def _wake(self) -> tf.Operation:
        """Gives a token to every worker that has none."""
        return tf.group(
            *[
                tf.cond(queue.size() > 0, tf.no_op, lambda queue=queue: queue.enqueue(True)).op
                for queue in self._tokens
            ]
        )
