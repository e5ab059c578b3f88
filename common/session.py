"""The training session: TensorFlow's monitored session with its standard hooks, made to start
together with the others, to recover, and to stop together."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from common import data, models
from common.training import graphs, measure, results
from common.training.loop import Session
from common.training.recovery import SessionCreator
from common.training.steps import Notes, Replica, Step
from common.training.together import StartAndStop

LOST = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.FailedPreconditionError)


@graphs.scope("count")
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
    """A monitored session for the training loop; on leaving it, the run's results are written.

    It initialises what it finds in the graph: variables, tables, the inputs of `data.pipeline`.

    Args:
        task: who this process is.
        server: its server, or None without a cluster.
        step: what the loop runs; it trains `tf.trainable_variables()`, the global parameters.
        loss, number: of the step, scalars; a synchronous scheme has a `token` instead of a number.
        pulled_at: how many updates the parameters held that the step started from; without it,
            all that were made.
        replicas: further threads or towers in this process: a dictionary of `step`, `loss`,
            `number` and `pulled_at` for each; if they share one step, also `sent`, its gradients.
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
    # The count that hooks look at. In a step it is there already; but a hook may also ask between
    # steps, and must not wait for others then.
    counted = rounds is None and pulled_at is not None
    count_for_hooks = pulled_at if counted else updates_so_far(tf.train.get_global_step())
    tf.add_to_collection("global_step_read_op_cache", count_for_hooks)
    saver = None
    first = [
        tf.train.StopAtStepHook(last_step=flags.steps),
        Notes(steps),
    ]
    # Of how many calls hooks see one: 120 in a run, also where each worker makes its share.
    calls = flags.steps / (flags.steps_per_execution * (1 if rounds else flags.workers))
    seldom = max(1, int(calls / 120))
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
    tf.logging.set_verbosity(tf.logging.ERROR)  # TensorFlow's notes on its own hooks
    if hooks:
        from common.training import logs

        logs.show_our_lines()
    creator = SessionCreator(task, server, saver)
    monitor = functools.partial(tf.train.MonitoredSession, creator, stop_grace_period_secs=5)
    # A session of a single process takes its variables with it; the checkpoint has them.
    connect = creator.connect if task.hosts else creator.create_session
    lost, looped = False, False
    try:
        with monitor([*first, *hooks, *last]) as monitored:
            kind = Session
            if task.hosts and len(steps) > 1:
                from common.training.shared import Shared as kind
            with contextlib.suppress(tf.errors.OutOfRangeError):  # as the session would do
                yield kind(monitored, steps, every=1 if hooks else seldom)
            looped = True
    except tf.train.NanLossDuringTrainingError:
        results.diverged(task, f"the loss of {task.name}")
    except LOST:
        if not looped:
            raise
        lost = True
    while True:
        try:
            if lost:
                with monitor([*first, *last]) as monitored:  # the updates that it lost
                    again = Session(monitored, steps, seldom)
                    while not again.should_stop():
                        again.run(step)
            with connect() as session:
                together.finish(session, lambda: evaluation.finish(session, saving.save))
            return
        except LOST:
            lost = True
