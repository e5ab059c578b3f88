"""What a worker prints: loss, examples per second, and how long it waited for data."""

import time

import tensorflow.compat.v1 as tf

from common.graph import clock


def timed(next_batch):
    """A fresh batch, with a clock in the graph right before and right after it.

    Returns:
        x, labels, and the seconds that this worker has waited for batches so far.
    """
    total = tf.Variable(lambda: tf.zeros([], tf.float64), trainable=False, name="waited",
                        collections=[tf.GraphKeys.LOCAL_VARIABLES])  # fmt: skip
    before = clock.now([])
    with tf.control_dependencies([before]):
        x, labels = next_batch()
    waited = total.assign_add(clock.now([x, labels]) - before)
    with tf.control_dependencies([waited]):  # part of every step
        return tf.identity(x), tf.identity(labels), waited


class Progress(tf.train.SessionRunHook):
    """Prints a line after every `--log_frequency` updates by all workers, and at the end."""

    def __init__(self, task, number: tf.Tensor, loss: tf.Tensor, waited: tf.Tensor):
        self._flags, self._name = task.flags, f"[{task.name}]"
        self._fetches = {"number": number, "loss": loss, "waited": waited}

    def after_create_session(self, session, coord):
        self._first = self._last = None  # a new session starts from zero

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(self._fetches)

    def after_run(self, run_context, run_values):
        found = run_values.results
        now, step = (time.monotonic(), found["waited"]), int(found["number"]) + 1
        if self._first is None:  # the first step also sets up the graph: count from its end
            self._first = self._last = self._newest = *now, 0, step
            return
        batches = self._newest[2] + self._flags.steps_per_execution
        self._newest, self._loss = (*now, batches, step), found["loss"]
        every = self._flags.log_frequency
        if step // every > self._last[3] // every:
            self._print()

    def _print(self) -> None:
        spent = [new - old for new, old in zip(self._newest, self._last)][:3]
        # run.sh shows lines that begin with "> " on the screen, without the "> ".
        print(f"> {self._name} step {self._newest[3]}  loss {self._loss:.4g}  {self._text(*spent)}",
              flush=True)  # fmt: skip
        self._last = self._newest

    def _text(self, seconds: float, waited: float, batches: int) -> str:
        rate = batches / seconds
        return (f"{self._flags.batch_size * rate:.1f} examples/sec  {1 / rate:.3f} sec/batch  "
                f"waiting for data {waited / seconds:.1%}")  # fmt: skip

    def end(self, session):
        if self._first and self._newest[2]:
            if self._newest != self._last:
                self._print()
            spent = [new - old for new, old in zip(self._newest, self._first)][:3]
            print(f"> {self._name} overall  {self._text(*spent)}", flush=True)
