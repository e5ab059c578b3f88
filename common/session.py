"""The training session: TensorFlow's monitored session with its standard hooks. All workers start
together and stop together, and a session recovers when a ps is lost."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn

import numpy as np
import tensorflow.compat.v1 as tf

from common import copies, fail
from common.graph import aborts, clock
from common.record import faults, results
from common.records import Gathered, Metric, Push, Update
from common.training import checks, logs
from common.training.chief import Chief
from common.training.loop import Session
from common.training.measured import Replica
from common.training.recovery import SessionCreator
from common.training.shared import Shared
from common.training.steps import Notes, Step
from common.training.together import StartAndStop

__all__ = ["Metric", "Replica", "next_update", "training"]

LOST = tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.FailedPreconditionError


@contextlib.contextmanager
def next_update(
    global_step: tf.Variable, flags, *arrived: Push | Gathered | Sequence[tf.Tensor]
) -> Iterator[Update]:
    """Turns the code inside the `with` into one update, which runs once it has its number.

    Reading and counting are one atomic operation, so each of the numbers 0 .. steps - 1 goes to
    exactly one update of one worker. (If a ps is lost, the updates since the last checkpoint are
    made again, with the same numbers.) After the last one TensorFlow raises `OutOfRangeError`,
    which ends a monitored session: no surplus update is applied.

    Inside, an operation runs on the ps that holds its operands. Make optimizers and schedules there
    too, of `update.number`; sums, means and clipping of values that have arrived also belong there.

    Args:
        global_step: the number of updates so far, a variable on a ps.
        flags: the command line, for `--steps`.
        arrived: what the update uses and waits for: values on the device that applies it.

    Yields:
        The update: its number, and when it was counted.
    """

    def beside_operands(op: tf.Operation) -> str:
        places = [tensor.op.device for tensor in op.inputs if "/job:ps" in tensor.op.device]
        return op.device or (places[0] if places else global_step.device)

    values = [each.values if isinstance(each, (Push, Gathered)) else each for each in arrived]
    with tf.name_scope("count"), tf.device(global_step.device):
        # A group waits for each ps with one message.
        counted_at = clock.now([tf.group(*tf.nest.flatten(values))])
        with tf.control_dependencies([counted_at]):
            number = tf.raw_ops.ResourceCountUpTo(
                resource=global_step.handle, limit=flags.steps, T=tf.int64
            )
    with tf.device(beside_operands), tf.control_dependencies([number]):
        yield Update(number, counted_at)


@contextlib.contextmanager
def training(
    task,
    server: tf.train.Server | None,
    params: Sequence[tf.Variable],
    replicas: Sequence[Replica],
    *,
    tables: Sequence = (),
    rounds=None,
    waits=None,
    begin: Sequence[tf.Operation] = (),
    hooks: Sequence[tf.train.SessionRunHook] = (),
    evaluate: Callable[..., dict[str, tf.Tensor | Metric]] | None = None,
    test: tuple[np.ndarray, np.ndarray] | None = None,
    validation: tuple[np.ndarray, np.ndarray] | None = None,
) -> Iterator[Session]:
    """Opens a monitored session for the training loop; on exit, writes the run's results.

    It initialises what it finds in the graph: variables, tables, the inputs of `data.pipeline`.

    Args:
        task: who this process is.
        server: its server, or None without a cluster.
        params: the global parameters; `parameters.npz` will hold them, and `evaluate` gets them.
            Those that are not trained, such as moving statistics, may follow the others.
        tables: tables of embeddings, which are trained, too: see `copies.rows`. `parameters.npz`
            will hold them after the others; `evaluate` gets the variables, not their values.
        replicas: what each replica that this process drives does in a step: mostly one.
        rounds: the rounds of a synchronous scheme.
        waits: of a scheme whose workers make their own updates, but sometimes wait for each other:
            an object with three operations on the ps. `start` runs when a session begins, `again`
            after an aborted step, and `close` ends the loops of those who wait if the run stops.
        begin: run before the first step, and again after a recovery, once the parameters exist.
        hooks: the script's own; they see every step.
        evaluate: takes (parameters, x, labels), tensors, and returns measures of each example: name
            -> [batch], including `loss`, or a `Metric`. The first one, or `accuracy`, is the
            run's metric. Default: those of `--model`.
        test: x and labels of the test set. Default: that of `--data`.
        validation: the same of a validation set: then the evaluations during training use it, and
            only the last one uses the test set.

    Yields:
        The session. It stops when `global_step` reaches `--steps`, when the metric reaches
        `--target_accuracy` (if it is not the accuracy, `--target`), when it has not become better
        in `--patience` evaluations, or when a hook of any worker requests it: then all workers
        stop. With `--patience`, `parameters.npz` will hold the best parameters.

    Raises:
        ValueError: if a step does not do what the script says (see `checks.check`).

    Exits with one line and code 2 on a NaN loss, another model's checkpoint, or a missing task.
    """
    flags, global_step = task.flags, tf.train.get_global_step()
    results.create(flags.results)
    trained = [*params, *copies.blocks_of(*tables)]
    checks.check(task, trained, global_step, replicas, rounds is not None)
    groups: dict[tf.Operation, list[Replica]] = {}  # replicas that share a step
    for replica in replicas:
        groups.setdefault(replica.step, []).append(replica)
    # Each worker has a shard, or each replica that a chief drives.
    shards = flags.workers if task.hosts and task.job == "worker" else len(replicas)
    steps = []
    for group in groups.values():
        first = sum(len(step.replicas) for step in steps)
        steps.append(Step(task, task.index + first, group, shards))
    # The count that hooks read. Within a step, it has been read already; but a hook may also read
    # it between steps, and must not wait for other workers then.
    pull, waits = replicas[0].pull, waits or rounds
    with tf.device(global_step.device):
        count = global_step.read_value() if waits or pull is None else pull.count
    tf.add_to_collection("global_step_read_op_cache", count)

    together = StartAndStop(task, [*begin, *([waits.start] if waits else [])],
                            [waits.close] if waits else [])  # fmt: skip
    chief = None
    if task.is_chief:
        chief = Chief(task, params, tables, evaluate, test, validation, together, count)
    creator = SessionCreator(task, server, chief.saver if chief else None)
    notes = Notes(steps, creator)
    inner = [tf.train.StopAtStepHook(last_step=flags.steps), notes, *_summaries(task)]
    outer = [*(chief.hooks if chief else []), together]
    if rounds and chief:
        outer.append(rounds.chief)
    again = [waits.again] if waits else []
    # Hooks see about 75 calls of each worker or more, never two in a row.
    calls = flags.steps / (flags.steps_per_execution * (1 if rounds else flags.workers))
    between = max(1, int(calls / 80))
    for name in ("evaluate_every", "checkpoint_every"):
        if every := getattr(flags, name, None):  # hooks must see more of them
            between = min(between, int(calls * every / flags.steps / 2))
    kind = Shared if task.hosts and len(steps) > 1 else Session
    tf.logging.set_verbosity(tf.logging.ERROR)  # hides TensorFlow's notes on its own hooks
    if hooks:
        logs.show_our_lines()
    monitor = functools.partial(tf.train.MonitoredSession, creator, stop_grace_period_secs=5)

    lost = looped = False
    try:
        with monitor([*inner, *hooks, *outer]) as monitored:
            with together.data_may_end():
                yield kind(monitored, steps, notes, again, 0 if hooks else between)
            looped = True  # what fails from here on, the end of the run repeats
    except tf.train.NanLossDuringTrainingError:
        faults.diverged(task, f"the loss of {task.name}")
    except tf.errors.InvalidArgumentError as error:
        _refuse(task, error)
    except LOST as error:
        if not looped:
            raise
        lost = not aborts.is_abort(error)
    while True:
        try:
            if lost:
                with monitor([*inner, *outer]) as monitored, together.data_may_end():
                    session = Session(monitored, steps, notes, again, between)
                    while not session.should_stop():  # repeats the updates that the ps lost
                        session.run(steps[0].op)
            # Without a cluster, variables die with their session; the checkpoint has them.
            with creator.connect() if task.hosts else creator.create_session() as session:
                together.finish(session, chief.write if chief else None)
            return
        except LOST:
            lost = True
        except tf.errors.InvalidArgumentError as error:  # in the last evaluation
            _refuse(task, error)


def _refuse(task, error: tf.errors.InvalidArgumentError) -> NoReturn:
    """Says which row a table does not have; raises any other error."""
    if said := copies.outside(error):
        fail(f"{task.name}: {said}: look at --data and the size of the table")
    raise error


def _summaries(task) -> list[tf.train.SessionRunHook]:
    """Writes the script's own summaries, if it has any, once a second."""
    own = tf.summary.merge_all()
    if own is None:
        return []
    path = f"{task.flags.results}/worker-{task.index}"
    return [tf.train.SummarySaverHook(save_secs=1, output_dir=path, summary_op=own)]
