"""The training session: TensorFlow's monitored session with its standard hooks, made to start
together with the others, to recover, and to stop together."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from common import data, models
from common.training import graphs, logs, measure, results
from common.training.evaluation import Evaluation
from common.training.loop import Session
from common.training.recovery import SessionCreator, check_checkpoint
from common.training.steps import Notes, Replica, Step
from common.training.together import StartAndStop


def updates_so_far(global_step: tf.Variable) -> tf.Tensor:
    """How many updates there have been (int64 scalar), where nothing is pulled."""
    with tf.device(global_step.device):
        read_at = measure.now([])
        with tf.control_dependencies([read_at]):
            count = global_step.read_value()
    measure.note("read", count, read_at)
    return count


@contextlib.contextmanager
def next_update(global_step: tf.Variable, flags, after: Sequence[tf.Tensor]) -> Iterator[tf.Tensor]:
    """What is written inside the `with` is one update: it runs after the update got its number.

    Reading and counting are one atomic operation, so over all workers the numbers
    0 .. steps - 1 appear exactly once each. After the last one TensorFlow raises `OutOfRangeError`,
    which ends a monitored session: no update too many is applied.

    Inside, an operation goes to the ps that holds its operands; compute before what can be computed
    before, so that the update follows its number at once.

    `after` is what the update is made of, arrived where it is applied.

    Yields:
        The number: how many updates were counted before this one, int64 scalar.
    """

    def beside_operands(op: tf.Operation) -> str:
        places = [tensor.op.device for tensor in op.inputs if "/job:ps" in tensor.op.device]
        return op.device or (places[0] if places else global_step.device)

    with tf.device(global_step.device):
        counted_at = measure.now([tf.group(*after)])  # a group waits for each ps with one message
        with tf.control_dependencies([counted_at]):
            number = tf.raw_ops.ResourceCountUpTo(
                resource=global_step.handle, limit=flags.steps, T=tf.int64
            )
    measure.note("counted", number, counted_at)
    computed_at = measure.noted("computed", after[0])
    if computed_at is not None:
        measure.note("computed", number, computed_at)
    with tf.device(beside_operands), tf.control_dependencies([number]):
        yield number


@contextlib.contextmanager
def training(
    task,
    server: tf.train.Server | None,
    step: tf.Operation,
    *,
    loss: tf.Tensor,
    number: tf.Tensor | None = None,
    token: tf.Tensor | None = None,
    pulled_at: tf.Tensor | None = None,
    replicas: Sequence[dict] = (),
    rounds=None,
    begin: Sequence[tf.Operation] = (),
    hooks: Sequence[tf.train.SessionRunHook] = (),
    evaluate: Callable[..., dict[str, tf.Tensor]] | None = None,
    test: tuple[np.ndarray, np.ndarray] | None = None,
) -> Iterator[Session]:
    """A monitored session for the training loop; on leaving it, the run's results are written.

    What must be initialised is found in the graph: variables, tables, `tf.data` pipelines.

    Args:
        task: who this process is.
        server: its server, or None without a cluster.
        step: what the loop runs; it trains `tf.trainable_variables()`, the global parameters.
        loss, number: of the step, scalars; a synchronous scheme has a `token` instead of a number.
        pulled_at: how many updates the parameters held that the step started from; without it,
            all that were made.
        replicas: further threads or towers in this process: a dictionary of `step`, `loss`,
            `number` and `pulled_at` for each.
        rounds: of a synchronous scheme.
        begin: run before the first step, and again after a recovery, when the parameters are there.
        hooks: of the script's own; they see every step.
        evaluate: from (parameters, x, labels), tensors, to what is measured of each example: name
            -> [batch], with `accuracy` and `loss`. Without it, those of `--model`.
        test: x and labels of the test set. Without it, that of `--data`.

    Yields:
        The session. It stops when `global_step` reaches `--steps`, or the test accuracy
        `--target_accuracy`.

    Raises:
        ValueError: for an update that is not made under its number, on the ps.

    A loss that is no longer a number, a checkpoint of another model, or a task that never comes
    ends the process with one sentence and exit code 2.
    """
    flags = task.flags
    folder = results.create(flags.results)
    params = tf.trainable_variables()
    number = token if number is None else number
    everyone = [Replica(step, loss, number, pulled_at), *(Replica(**each) for each in replicas)]
    if rounds is None:
        for each in everyone:
            graphs.check_updates(params, each.step, each.number)
    together = StartAndStop(task, [*begin, *(rounds.start if rounds else [])],
                            [rounds.close] if rounds else [])  # fmt: skip
    tf.summary.scalar("loss", loss)
    if everyone[-1].step is step:  # one replica, or towers, all in the same step
        steps = [Step(task, task.index, everyone)]
    else:
        steps = [Step(task, k, [each]) for k, each in enumerate(everyone)]
    saver = tf.train.Saver(tf.global_variables(), max_to_keep=2)
    pulled = number if pulled_at is None else pulled_at
    all_hooks = [
        tf.train.StopAtStepHook(last_step=flags.steps),
        tf.train.LoggingTensorHook(
            {"number": number, "loss": loss, "pulled_at": pulled},
            every_n_secs=1,
            formatter=lambda v: results.line(
                task.index, v["number"] + 1, v["loss"], max(0, v["number"] - v["pulled_at"])
            ),
        ),
        tf.train.SummarySaverHook(
            save_secs=1,
            output_dir=str(folder / "tensorboard" / f"worker-{task.index}"),
            summary_op=tf.summary.merge_all(),
        ),
        Notes(steps),
        *hooks,
    ]
    if task.is_chief:
        check_checkpoint(flags.checkpoint_dir)
        evaluate = evaluate or functools.partial(models.evaluate, flags.model)
        test = test or data.load(flags, "test")
        evaluation = Evaluation(task, params, evaluate, test, together.stop)
        all_hooks += [
            tf.train.CheckpointSaverHook(
                flags.checkpoint_dir, save_secs=1, saver=saver, save_graph_def=False
            ),
            evaluation,
        ]
    # The count that hooks look at. In a step it is there already; but a hook may also ask between
    # steps, and must not wait for others then.
    counted = rounds is None and pulled_at is not None
    count_for_hooks = pulled_at if counted else updates_so_far(tf.train.get_global_step())
    tf.add_to_collection("global_step_read_op_cache", count_for_hooks)
    logs.show_our_lines()
    creator = SessionCreator(task, server, saver)
    try:
        with tf.train.MonitoredSession(
            creator, [*all_hooks, together, *filter(None, [rounds])], stop_grace_period_secs=5
        ) as monitored:
            yield Session(monitored, steps, every=bool(hooks))
    except tf.train.NanLossDuringTrainingError:
        results.diverged(task, f"the loss of {task.name}")
    connect = creator.connect
    while True:
        try:
            with connect() as session:
                together.finish(session, lambda: evaluation.finish(session, saver))
            return
        except (tf.errors.UnavailableError, tf.errors.AbortedError,
                tf.errors.FailedPreconditionError):  # fmt: skip
            print(f"{task.name} lost a parameter server at the end and comes back", flush=True)
            connect = creator.create_session
