"""What flows from one part of a step to the next: small records, which a script passes on.

    rows = copies.rows(table, ids)                    -> Rows (tables of embeddings)
    pull = copies.pull(params, global_step)           -> Pull
    push = copies.send(grads, params)                 -> Push
    with session.next_update(..., push) as update     -> Update
    token = rounds.wait(), rounds.gather(...)         -> Token, Gathered (synchronous schemes)
    evaluate(...)                                     -> {name: values, or a Metric}

All times are seconds since 1970 (float64 scalars), each by the clock of the machine named here.
No time of one machine is ever subtracted from that of another.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow.compat.v1 as tf


class Rows(NamedTuple):
    """The distinct rows of a table that a step uses. The table is cut into blocks of rows.

    Attributes:
        blocks: the variables that make up the table, each on a ps: [rows of the block, ...].
        counts: how many rows each block gives, int32 scalars on the worker.
        numbers: which ones, int32 [rows], numbers within the block; on the block's ps.
        sent: what carries them there, one tensor for each ps, on the worker.
        where: which of the pulled rows each id names, int32, of the shape of the ids.
    """

    blocks: list
    counts: list
    numbers: list
    sent: list
    where: tf.Tensor


class Pull(NamedTuple):
    """Values of the global parameters that a worker has pulled.

    Attributes:
        w: one value per parameter, of its shape, on the worker; then one per table, of the rows
            that were named, [rows, ...], those of its first block first.
        on_ps: the same values, still on their ps: an update can use them, and nothing travels back.
            Of a table, one value per block.
        count: how many updates they contain, int64 scalar, on the ps of `global_step`. With one ps
            that has one thread, exactly these: a count and its update run back to back, and so do
            the reads of a pull. With more ps or threads, they may overlap.
        read_at: when that ps read the count, just before the values, by its own clock.
        asked_at, arrived_at: when the step began on the worker, and when all of `w` was there, by
            the worker's clock; None if `w` are the parameters themselves, in this process.
    """

    w: list
    on_ps: list
    count: tf.Tensor
    read_at: tf.Tensor
    asked_at: tf.Tensor | None = None
    arrived_at: tf.Tensor | None = None


class Push(NamedTuple):
    """Values that have arrived on the ps. They change nothing there yet.

    Attributes:
        values: one per parameter, of its shape, on the parameter's ps; then one per block of the
            tables, tf.IndexedSlices of the rows that were pulled.
        computed_at: when the worker had computed all of them, by its clock.
        sent: what carries them there, on the worker: one tensor for each transfer.
    """

    values: list
    computed_at: tf.Tensor
    sent: Sequence[tf.Tensor] = ()


class Token(NamedTuple):
    """A worker's permission to begin a step, in a scheme whose workers wait for each other.

    Attributes:
        number: in a synchronous scheme, the number of the round's update: how many were made before
            it; int64 scalar, on the ps of `global_step`.
        asked_at: when that ps was asked for the token, by its clock.
    """

    number: tf.Tensor
    asked_at: tf.Tensor


class Gathered(NamedTuple):
    """The pushes of one round of a synchronous scheme.

    Attributes:
        values: their sum for each parameter, of its shape, on the parameter's ps. If stacked, what
            each worker has sent, [workers, ...]: zeros from one whose push they do not contain.
        who: whose pushes they contain, bool [workers], on the ps of `global_step`.
    """

    values: list
    who: tf.Tensor


class Update(NamedTuple):
    """One update of the global parameters, which has been counted and is now applied.

    Attributes:
        number: how many updates were counted before it, int64 scalar, on the ps of `global_step`.
            Inside the update, use this instead of `global_step`, which already counts it.
        counted_at: when the ps counted it, by its clock.
    """

    number: tf.Tensor
    counted_at: tf.Tensor


class Metric(NamedTuple):
    """A measure that is more than the mean over the test examples, or of which less is better.

    Attributes:
        values: one per example, [batch].
        of_mean: the measure, computed from their mean: `math.sqrt` if `values` are squared errors
            and the measure is their RMSE, `math.exp` for a perplexity.
        lower: whether less is better.
    """

    values: tf.Tensor
    of_mean: Callable[[float], float] = float
    lower: bool = False
