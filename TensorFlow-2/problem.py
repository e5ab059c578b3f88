"""The learning problem in TensorFlow 2, the same for all strategies: the same batches as in the
other examples, and what `session.training` does there. The network and its initial values are in
`common/models.py`."""

import contextlib
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from common import data, fail, gates, models
from common.graph import closing
from common.told import addresses
from common.record import faults, trace
from common.training import checkpoints, evaluation, events

CONNECTS = 60.0  # seconds, many times what it takes
RETURNS = 120  # seconds until the first step of a worker that was started again; the same


def batches(flags, train, worker) -> tf.data.Dataset:
    """Worker k of n gets examples k, k + n, ... in the same batches as with `data.batches`.

    Args:
        flags: the parsed command line.
        train: x and labels of the whole training set.
        worker: k, an integer; or a tensor, if all workers share one graph.
    """
    x, labels = train
    mine = tf.range(worker, len(labels), flags.workers, dtype=tf.int64)
    size = tf.size(mine, tf.int64)
    if flags.batch_size:
        seed = flags.seed + 1000 * tf.cast(worker, tf.int32)
        numbers = data.shuffled(size, flags.batch_size, seed)
    else:
        numbers = tf.data.Dataset.range(size).batch(size).repeat()

    def examples(chosen):
        wanted = tf.gather(mine, chosen)
        return data.scaled(tf.gather(x, wanted)), tf.gather(labels, wanted)

    options = tf.data.Options()
    options.threading.private_threadpool_size = 1
    options.autotune.enabled = False
    dataset = numbers.map(examples).prefetch(8).with_options(options)
    if not flags.delay:
        return dataset
    # TensorFlow's own op: a Python function would run in the chief and delay all workers.
    pauses = tf.constant([flags.delay.get(k, 0.0) for k in range(flags.workers)])
    spec = dataset.element_spec
    late = tf.raw_ops.SleepDataset(
        input_dataset=tf.data.experimental.to_variant(dataset),
        sleep_microseconds=tf.cast(1e6 * tf.gather(pauses, worker), tf.int64),
        output_types=[each.dtype for each in spec],
        output_shapes=[each.shape for each in spec],
    )
    return tf.data.experimental.from_variant(late, spec)


class Record:
    """Writes the run's events, evaluations, checkpoints and results, in the same files and formats
    as the other examples."""

    def __init__(self, task, params, global_step, replicas):
        """`replicas`: those whose steps this process records. Restores the newest checkpoint."""
        self._task, self._params, self.global_step = task, params, global_step
        self._test = data.load(task.flags, "test")
        self._due, self._line = 0.0, 0.0
        self._schedule = evaluation.Schedule(task.flags)
        self._events = {k: events.Events(task.flags, k) for k in replicas}
        self._checkpoint = tf.train.Checkpoint(params=params, global_step=global_step)
        if newest := checkpoints.newest(task.flags.checkpoint_dir):
            try:
                with checkpoints.no_pattern(newest) as path:
                    self._checkpoint.read(path).assert_existing_objects_matched()
            except (ValueError, AssertionError):
                fail(f"the checkpoint {newest} is from another model, or from an example "
                     "with sessions: use a different --checkpoint_dir")  # fmt: skip
            if task.is_chief:
                checkpoints.resumed(task, int(global_step.numpy()))

    def note(
        self, replica, number, loss, began, pulled, computed, pushed,
        pulled_at=None, out=None, counted=None,
    ) -> None:  # fmt: skip
        """Records a step.

        Args:
            replica: the one that took the step.
            number: how many updates came before its own.
            loss: of its mini-batch.
            began, pulled, computed, pushed: the times, in seconds since 1970.
            pulled_at: the number of updates at the pull; default: `number`.
            out, counted: by the clock of the ps, the seconds from pull to push, and when it counted
                the update.
        """
        signal.alarm(0)
        number = int(number)
        pulled_at = number if pulled_at is None else int(pulled_at)
        self._events[replica].note(
            number + 1, float(loss), computed - pulled, pulled - began, pushed - computed,
            pulled_at=pulled_at, time=pushed, out=out, counted=counted,
        )  # fmt: skip
        if math.isnan(loss):
            faults.diverged(self._task, f"the loss of worker {replica}")
        if pushed > self._line:
            print(trace.line(replica, number + 1, loss, number - pulled_at), flush=True)
            self._line = pushed + 1

    def save_and_measure(self) -> bool:
        """Saves a checkpoint once a second, and evaluates on a sample of the test set about 75
        times in a run.

        Returns:
            Whether this evaluation has reached `--target_accuracy`; False without an evaluation.
        """
        if time.time() > self._due:
            self._save()
            self._due = time.time() + 1
        if not self._schedule.is_due(int(self.global_step.numpy())):
            return False
        began, target = time.time(), self._task.flags.target_accuracy
        found = self._measure(sample=1000)
        self._schedule.note(found["global_step"], time.time() - began)
        if target and found["test_accuracy"] >= target:
            found = self._measure()  # on the whole set, to be sure
        events.note_evaluation(self._task.flags, found)
        return bool(target) and found["test_accuracy"] >= target and found["global_step"] > 0

    def finish(self) -> None:
        """Saves a last checkpoint, evaluates on the whole test set, writes parameters.npz."""
        found, flags = self._measure(), self._task.flags
        if not math.isfinite(found["test_loss"]):
            faults.diverged(self._task, "the loss on the test set")
        self._save()
        arrays = {param.name.partition(":")[0]: param.numpy() for param in self._params}
        events.finish(flags, arrays, **found)
        print(f"test accuracy {found['test_accuracy']:.2%} after {found['global_step']} updates; "
              f"results in {flags.results}", flush=True)  # fmt: skip

    def _save(self) -> None:
        """Names the checkpoint after the count in it: other updates may come while it is saved."""
        path = f"{self._task.flags.checkpoint_dir}/{checkpoints.SAVING}"
        with checkpoints.no_pattern(path) as plain:
            self._checkpoint.write(plain)
        checkpoints.complete(path, "global_step/.ATTRIBUTES/VARIABLE_VALUE")

    def _measure(self, sample: int | None = None) -> dict:
        x, labels = self._test
        stride = max(1, math.ceil(len(labels) / sample)) if sample else 1
        x, labels = x[::stride], labels[::stride]
        found = {"global_step": int(self.global_step.numpy())}
        found |= {"test_accuracy": 0.0, "test_loss": 0.0}
        w = [tf.convert_to_tensor(param.numpy()) for param in self._params]
        for i in range(0, len(labels), 1000):
            part = slice(i, i + 1000)
            batch = data.scaled(tf.constant(x[part])), labels[part]
            for name, values in models.evaluate(self._task.flags.model, w, *batch).items():
                found[f"test_{name}"] += float(np.sum(values)) / len(labels)
        return found


def start_again_after_a_loss(task) -> None:
    """From now on, an error that reports a lost task restarts this process from the newest
    checkpoint. It may be raised anywhere, even before the first step.

    A worker that was started again, and makes no step in `RETURNS` seconds, ends by SIGALRM, and
    run.sh starts it once more. If another one is replaced while they find each other, TensorFlow
    may wait for an hour; meanwhile it runs no Python, not even in another thread."""
    usual = sys.excepthook  # that of common/, which explains a full disk

    def hook(kind, error, trace):
        if not isinstance(error, (tf.errors.UnavailableError, tf.errors.AbortedError)):
            return usual(kind, error, trace)
        said = str(error)
        said = said[max(0, said.find("Collective ops")) :]  # without the graph's traceback
        print(f"> [{task.name}] lost another task\n{said}", flush=True)
        _start_again(task)

    sys.excepthook = hook
    again = any(int(os.environ.get(name, 0)) for name in ("STARTED_AGAIN", "TASK_RESTARTS"))
    if again and task.job == "worker":  # the chief of ParameterServerStrategy has `connecting`
        signal.alarm(RETURNS)


@contextlib.contextmanager
def connecting(task) -> Iterator[None]:
    """Inside, TensorFlow connects to tasks that have answered. If one of them is replaced in that
    moment, it may wait forever: so this process starts again after `CONNECTS` seconds."""

    def late():
        print(f"> [{task.name}] lost another task: no connection in {CONNECTS:g} s", flush=True)
        try:
            _start_again(task)
        except SystemExit as ended:  # in this thread; the other one still waits
            os._exit(ended.code)

    timer = threading.Timer(CONNECTS, late)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _start_again(task) -> None:
    restarts = int(os.environ.get("STARTED_AGAIN", 0)) + 1
    if restarts > task.flags.max_restarts:
        fail(f"{task.name} lost another task, and --max_restarts allows no more restarts")
    print(f"{task.name} is starting again from the newest checkpoint", flush=True)
    os.environ["STARTED_AGAIN"] = str(restarts)
    os.execv(sys.executable, [sys.executable, *sys.argv, "--results", task.flags.results])


def let_go(task) -> None:
    """Opens the gates at which the ps and the worker servers wait, so that they exit.

    A server may exit before it answers. TensorFlow would repeat the call without end. So a call has
    half a second, and is repeated only while the server is there.
    """
    v1 = tf.compat.v1
    for job, k in task.servers:
        address, place = task.hosts[job][k], f"/job:{job}/task:{k}"
        config = v1.ConfigProto(device_filters=[place], operation_timeout_in_ms=500)
        left = False
        # Without an answer, it was killed and is not back yet: run.sh will stop it.
        while not left and addresses.answers(address):
            with (
                contextlib.suppress(tf.errors.DeadlineExceededError, tf.errors.UnavailableError),
                v1.Graph().as_default(),
            ):
                gate = gates.Gate(f"left-{job} {k}-{task.name}", place)
                session = closing.Session(f"grpc://{address}", config=config)
                session.closes = False
                gate.open(session)
                left = True
