"""The training session: TensorFlow's monitored session with its standard hooks, made to start
together with the others, to recover, and to stop together."""

import contextlib
import logging
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf

from common import copies, hooks, results
from common.flags import fail
from common.gates import Together
from common.recovery import Loop, SessionCreator
from common.rounds import Rounds


def updates_so_far(global_step: tf.Variable) -> tf.Tensor:
    """How many updates there have been, read on the ps: the pull's place among the updates."""
    with tf.device(global_step.device):
        now = tf.timestamp()
        with tf.control_dependencies([now]):
            count = global_step.read_value()
    tf.add_to_collection(copies.noted_at(count), now)
    return count


def next_update(global_step: tf.Variable, flags, after: list[tf.Tensor]) -> tf.Tensor:
    """Counts an update of the global parameters, and tells how many came before it.

    Reading and counting are one step that nobody can divide, so over all workers the numbers
    0 .. steps - 1 appear exactly once each. After the last one TensorFlow raises
    `OutOfRangeError`, which ends a monitored session: no update too many is applied.

    Args:
        global_step: the counter, int64, on a ps.
        flags: the command line (`steps`).
        after: tensors to wait for: the count at the pull, and the update itself, arrived where it
            is applied.

    Returns:
        int64 scalar.
    """
    with tf.device(global_step.device), tf.control_dependencies(after):
        now = tf.timestamp()
        with tf.control_dependencies([now]):
            number = tf.raw_ops.ResourceCountUpTo(
                resource=global_step.handle, limit=flags.steps, T=tf.int64
            )
    tf.add_to_collection(copies.noted_at(number), now)
    return number


@contextlib.contextmanager
def training(
    task,
    server: tf.train.Server | None,
    params: list[tf.Variable],
    step: tf.Operation,
    measured: tuple,
    begin: Sequence[tf.Operation] = (),
    rounds: Rounds | None = None,
    threads: Sequence[tuple] = (),
    towers: Sequence[tuple] = (),
) -> Iterator[Loop]:
    """A monitored session for the training loop; on leaving it, the run's results are written.

    Args:
        task: who this process is.
        server: its server, or None without a cluster.
        params: the global parameters.
        step: what the loop runs.
        measured: of each step, four things. `loss`, a scalar. `number`: how many updates came
            before this step's own (`next_update`). `pulled_at`: how many there had been when the
            parameters were pulled. `milestones`: what is there when the pull is over, and when the
            computing is over; they part the step's time into pull, compute and push. Of three, the
            first is what is there when waiting for others is over; one alone means that nothing is
            pulled.
        begin: run before the first step, and again after a recovery, when the parameters are there.
        rounds: makes the updates of a synchronous scheme.
        threads: of each further thread in this session, the step that it runs, and `measured`.
        towers: `measured` of each further part of the same step.

    Yields:
        The session. It stops when `global_step` reaches `--steps`, or the test accuracy
        `--target_accuracy`.

    A loss that is no longer a number, a checkpoint of another model, or a task that never comes
    ends the process with one sentence and exit code 2.
    """
    flags = task.flags
    folder = results.create(flags.results)
    saver = tf.train.Saver(tf.global_variables(), max_to_keep=2)
    together = Together(task, begin, [rounds.close] if rounds else [])
    loss, number, pulled_at, _ = measured
    tf.summary.scalar("loss", loss)
    events = [hooks.Events(task, step, [measured, *towers])]
    events += [hooks.Events(task, own, [its], first=k) for k, (own, its) in enumerate(threads, 1)]
    all_hooks = [
        tf.train.StopAtStepHook(last_step=flags.steps),
        tf.train.NanTensorHook(loss),
        tf.train.LoggingTensorHook(
            {"number": number, "loss": loss, "pulled_at": pulled_at},
            every_n_secs=1,
            formatter=lambda v: results.line(
                task.index, v["number"] + 1, v["loss"], v["number"] - v["pulled_at"]
            ),
        ),
        tf.train.SummarySaverHook(
            save_secs=1,
            output_dir=str(folder / "tensorboard" / f"worker-{task.index}"),
            summary_op=tf.summary.merge_all(),
        ),
        events[0],
        hooks.Beside(events[1:]),
    ]
    if task.is_chief:
        _check_checkpoint(flags.checkpoint_dir)
        evaluation = hooks.Evaluation(task, params, together.stop)
        all_hooks += [
            tf.train.CheckpointSaverHook(
                flags.checkpoint_dir, save_secs=1, saver=saver, save_graph_def=False
            ),
            evaluation,
        ]
    # The step that hooks look at: read anew, it would cost each of their steps a transfer. But a
    # hook may also ask between steps, and must not wait for others then.
    step_for_hooks = updates_so_far(tf.train.get_global_step()) if rounds else pulled_at
    tf.add_to_collection("global_step_read_op_cache", step_for_hooks)
    _only_our_lines()
    creator = SessionCreator(task, server, saver)
    try:
        with tf.train.MonitoredSession(
            creator, [*all_hooks, together, *filter(None, [rounds])], stop_grace_period_secs=5
        ) as session:
            yield Loop(session, events)
    except tf.train.NanLossDuringTrainingError:
        _diverged(task, f"the loss of {task.name}")
    connect = creator.connect
    while True:
        try:
            with connect() as session:
                together.finish(session, lambda: _write(task, session, saver, evaluation, params))
            return
        except (tf.errors.UnavailableError, tf.errors.AbortedError,
                tf.errors.FailedPreconditionError):  # fmt: skip
            print(f"{task.name} lost a parameter server at the end and comes back", flush=True)
            connect = creator.create_session


def _write(task, session, saver, evaluation, params) -> None:
    """The chief, when all updates are applied: accuracy, checkpoint, parameters.npz."""
    folder = Path(task.flags.results)
    step, accuracy, loss = evaluation.measure(session)
    if not math.isfinite(loss):
        _diverged(task, "the loss on the test set")
    saver.save(session, f"{task.flags.checkpoint_dir}/model.ckpt", step, write_meta_graph=False)
    values = session.run(params)
    arrays = {param.op.name: value for param, value in zip(params, values, strict=True)}
    results.write(folder / "parameters.npz", lambda path: _save(path, arrays))
    print(f"test accuracy {accuracy:.2%} after {step} updates; results in {folder}", flush=True)


def _diverged(task, what: str) -> None:
    fail(
        f"{what} is not a number any more: try a smaller --learning_rate than "
        f"{task.flags.learning_rate:g} (the more asynchronous workers, here {task.flags.workers}, "
        "the smaller it must be)"
    )


def _save(path, arrays) -> None:
    with open(path, "wb") as file:  # given a name, NumPy would append .npz to it
        np.savez(file, **arrays)


def _check_checkpoint(directory: str) -> None:
    """Ends the process with one sentence if the newest checkpoint is of another model."""
    newest = tf.train.latest_checkpoint(directory)
    if newest is None:
        results.create(directory, "--checkpoint_dir")
        return
    saved = tf.train.load_checkpoint(newest).get_variable_to_shape_map()
    for variable in tf.global_variables():
        shape = variable.shape.as_list()
        if saved.get(variable.op.name) != shape:
            fail(
                f"the checkpoint {newest} is of another model (it has {variable.op.name} "
                f"{saved.get(variable.op.name)}, not {shape}): name another --checkpoint_dir"
            )


def _only_our_lines() -> None:
    """Of TensorFlow's own log, the steps and what is worse than advice to its developers."""

    def ours(record: logging.LogRecord) -> bool:
        text = record.getMessage()
        return text.startswith("[worker") or (
            record.levelno > logging.INFO and "is deprecated" not in text
        )

    tf.logging.set_verbosity(tf.logging.INFO)
    logger = tf.get_logger()
    logger.addFilter(ours)
    for handler in logger.handlers:
        handler.setFormatter(logging.Formatter("%(message)s"))
