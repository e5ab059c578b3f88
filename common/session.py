"""The training session: TensorFlow's monitored session with its standard hooks. All workers start
together and stop together, and a session recovers when a ps is lost."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from common import data, models
from common.record import faults, results
from common.training import graphs, measure
from common.training.loop import Session
from common.training.recovery import SessionCreator
from common.training.steps import Notes, Replica, Step
from common.training.together import StartAndStop

LOST = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.FailedPreconditionError)


@graphs.scope("count")
def updates_so_far(global_step: tf.Variable) -> tf.Tensor:
    """The number of updates so far (int64 scalar), for a step that pulls nothing."""
    with tf.device(global_step.device):
        read_at = measure.now([])
        with tf.control_dependencies([read_at]):
            count = global_step.read_value()
    measure.note("read", count, read_at)
    return count


@contextlib.contextmanager
def next_update(global_step: tf.Variable, flags, after: Sequence[tf.Tensor]) -> Iterator[tf.Tensor]:
    """Turns the code inside the `with` into one update, which runs once it has its number.

    Reading and counting are one atomic operation, so each of the numbers 0 .. steps - 1 goes to
    exactly one update of one worker. After the last one TensorFlow raises `OutOfRangeError`, which
    ends a monitored session: no surplus update is applied.

    Inside, an operation runs on the ps that holds its operands. Compute all you can before the
    `with`, so that the update follows its number immediately.

    `after` is what the update uses, already on the device that applies it.

    Yields:
        The number: how many updates were counted before this one, int64 scalar.
    """

    def beside_operands(op: tf.Operation) -> str:
        places = [tensor.op.device for tensor in op.inputs if "/job:ps" in tensor.op.device]
        return op.device or (places[0] if places else global_step.device)

    with tf.name_scope("count"), tf.device(global_step.device):
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
    sent: Sequence[tf.Tensor] = (),
    replicas: Sequence[dict] = (),
    rounds=None,
    begin: Sequence[tf.Operation] = (),
    hooks: Sequence[tf.train.SessionRunHook] = (),
    evaluate: Callable[..., dict[str, tf.Tensor]] | None = None,
    test: tuple[np.ndarray, np.ndarray] | None = None,
) -> Iterator[Session]:
    """Opens a monitored session for the training loop; on exit, writes the run's results.

    It initialises what it finds in the graph: variables, tables, the inputs of `data.pipeline`.

    Args:
        task: who this process is.
        server: its server, or None without a cluster.
        step: what the loop runs; it trains `tf.trainable_variables()`, the global parameters.
        loss, number: the step's, scalars; a synchronous scheme has a `token` instead of a number.
        pulled_at: how many updates the parameters contained when the step pulled them; default:
            all updates so far.
        sent: if several replicas share one step: this replica's gradients, from `copies.send`.
        replicas: the other replicas that this process drives (threads, towers, or copies on the
            workers), each a dictionary of `step`, `loss`, `number`, `pulled_at` and `sent`.
        rounds: the rounds of a synchronous scheme.
        begin: run before the first step, and again after a recovery, once the parameters exist.
        hooks: the script's own; they see every step.
        evaluate: takes (parameters, x, labels), tensors, and returns measures of each example: name
            -> [batch], including `accuracy` and `loss`. Default: those of `--model`.
        test: x and labels of the test set. Default: that of `--data`.

    Yields:
        The session. It stops when `global_step` reaches `--steps`, or the test accuracy reaches
        `--target_accuracy`.

    Raises:
        ValueError: if an update does not wait for its number, or does not run on the ps.

    Exits with one line and code 2 on a NaN loss, another model's checkpoint, or a missing task.
    """
    flags = task.flags
    results.create(flags.results)
    params = tf.trainable_variables()
    number = token if number is None else number
    everyone = [Replica(step, loss, number, pulled_at, sent), *(Replica(**r) for r in replicas)]
    if task.is_chief and rounds is None:
        from common.training.checks import check_updates

        for each in everyone:
            check_updates(params, each.step, each.number)
    together = StartAndStop(task, [*begin, *(rounds.start if rounds else [])],
                            [rounds.close] if rounds else [])  # fmt: skip
    one = everyone[-1].step is step  # one replica, or towers, all in the same step
    groups = [everyone] if one else [[each] for each in everyone]
    steps = [Step(task, task.index + k, group) for k, group in enumerate(groups)]
    # The count that hooks read. Within a step, it has been read already; but a hook may also read
    # it between steps, and must not wait for other workers then.
    counted = rounds is None and pulled_at is not None
    count_for_hooks = pulled_at if counted else updates_so_far(tf.train.get_global_step())
    tf.add_to_collection("global_step_read_op_cache", count_for_hooks)
    saver = None
    first = [tf.train.StopAtStepHook(last_step=flags.steps), Notes(steps)]
    # Hooks see about 100 calls of each worker or more, never two in a row.
    calls = flags.steps / (flags.steps_per_execution * (1 if rounds else flags.workers))
    between = max(1, int(calls / 120))
    own = tf.summary.merge_all()  # the script's
    if own is not None:
        path = f"{flags.results}/tensorboard/worker-{task.index}"
        first += [tf.train.SummarySaverHook(save_secs=1, output_dir=path, summary_op=own)]
    last = [together, *filter(None, [rounds])]
    if task.is_chief:
        from common.training import checkpoints
        from common.training.evaluation import Evaluation

        saver = checkpoints.saver(flags.checkpoint_dir)
        evaluate = evaluate or functools.partial(models.evaluate, flags.model)
        test = test or data.load(flags, "test")
        evaluation = Evaluation(task, params, evaluate, test, together.stop, count_for_hooks)
        saving = checkpoints.Checkpoints(flags.checkpoint_dir, saver)
        last = [saving, evaluation, *last]
    tf.logging.set_verbosity(tf.logging.ERROR)  # hides TensorFlow's notes on its own hooks
    if hooks:
        from common.training import logs

        logs.show_our_lines()
    creator = SessionCreator(task, server, saver)
    monitor = functools.partial(tf.train.MonitoredSession, creator, stop_grace_period_secs=5)
    # Without a cluster, variables die with their session; the checkpoint has them.
    connect = creator.connect if task.hosts else creator.create_session
    lost, looped = False, False
    try:
        with monitor([*first, *hooks, *last]) as monitored:
            kind = Session
            if task.hosts and len(steps) > 1:
                from common.training.shared import Shared as kind
            with contextlib.suppress(tf.errors.OutOfRangeError):  # as the session would do
                yield kind(monitored, steps, 0 if hooks else between)
            looped = True
    except tf.train.NanLossDuringTrainingError:
        faults.diverged(task, f"the loss of {task.name}")
    except LOST:
        if not looped:
            raise
        lost = True
    while True:
        try:
            if lost:
                with monitor([*first, *last]) as monitored:  # repeats the updates that the ps lost
                    again = Session(monitored, steps, between)
                    while not again.should_stop():
                        again.run(step)
            with connect() as session:
                together.finish(session, lambda: evaluation.finish(session, saving.save))
            return
        except LOST:
            lost = True
