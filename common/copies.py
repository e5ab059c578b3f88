"""Pulls local copies of the global parameters, and sends values back.

A small transfer costs nearly as much as an empty one, so everything between this worker and one ps
travels as one flat tensor for each type of number. Of a table of embeddings, only the rows that a
batch names travel.
"""

import functools
import itertools
import math
import re
from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from common.graph import clock
from common.graph.scope import scope
from common.records import Pull, Push, Rows

OUTSIDE = "has rows 0 to"
LARGEST = 2**31 - 1  # bytes of a tensor that can travel: the limit of a protocol buffer


def _transfers(params: Sequence, blocks: Sequence = ()) -> list[list[int]]:
    """Which parameters travel together: those of one type on one ps, in parts of at most `LARGEST`
    bytes. The blocks of tables, whose rows are few, are numbered after the parameters.

    Raises:
        ValueError: if a parameter alone is larger.
    """
    together: dict[tuple, list[int]] = {}
    room: dict[tuple, int] = {}  # bytes left in the last part
    parts: list[list[int]] = []
    for i, param in enumerate(params):
        kind = param.device, param.dtype.base_dtype
        size = param.shape.num_elements() * param.dtype.base_dtype.size
        if size > LARGEST:
            raise ValueError(
                f"{param.op.name} has {size:,} bytes, and no tensor of more than 2 GB can travel: "
                "cut it into several with tf.get_variable(..., partitioner="
                "tf.fixed_size_partitioner(N))"
            )
        if room.get(kind, 0) < size:
            together[kind], room[kind] = [], LARGEST
            parts.append(together[kind])
        together[kind].append(i)
        room[kind] -= size
    for i, block in enumerate(blocks, len(params)):
        kind = block.device, block.dtype.base_dtype
        if kind not in together:
            together[kind] = []
            parts.append(together[kind])
        together[kind].append(i)
    return parts


def _flat(tensors: Sequence) -> tf.Tensor:
    return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], axis=0)


def _shaped(
    flat: tf.Tensor, part: list[int], params: Sequence, blocks: Sequence, counts: Sequence
) -> list[tf.Tensor]:
    """The opposite of `_flat`, for what travels together (see `_transfers`)."""
    sizes, shapes = [], []
    for i in part:
        shape = params[i].shape if i < len(params) else blocks[i - len(params)].shape
        if i < len(params):
            sizes.append(shape.num_elements())
        else:
            shape = [-1, *shape[1:]]
            sizes.append(counts[i - len(params)] * math.prod(shape[1:]))
        shapes.append(shape)
    return [tf.reshape(one, shape) for one, shape in zip(tf.split(flat, sizes), shapes)]


def blocks_of(*tables) -> list[tf.Variable]:
    """The variables that make up these tables, in order: each is one, or was cut into several."""
    return [b for table in tables for b in ([table] if hasattr(table, "op") else table)]


@scope("rows")
def rows(table, ids: tf.Tensor) -> Rows:
    """The distinct rows of a table of embeddings that a batch names; sends their numbers to the ps.

    Args:
        table: a variable on a ps, or one that tf.get_variable(..., partitioner=
            tf.fixed_size_partitioner(N)) has cut into blocks of rows, on several ps: [rows, ...].
        ids: whole numbers from 0 to rows - 1, of any shape; one may occur many times. A step that
            names another row raises tf.errors.InvalidArgumentError (see `outside`).
    """
    variables = blocks_of(table)
    starts = [0, *itertools.accumulate(each.shape[0] for each in variables)]  # the last is the end
    flat = tf.reshape(ids, [-1])
    inside = (flat >= 0) & (flat < tf.cast(starts[-1], flat.dtype))
    refused = [
        f"{variables[0].op.name} {OUTSIDE} {starts[-1] - 1}:",
        tf.boolean_mask(flat, ~inside)[:1],
    ]
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(inside), refused)]):
        distinct, which = tf.unique(tf.cast(flat, tf.int32))
    block = tf.searchsorted(starts[1:], distinct, side="right")
    parts = tf.dynamic_partition(distinct - tf.gather(starts, block), block, len(variables))
    # Pulled rows come block by block: where does each of `distinct` stand there?
    order = tf.dynamic_partition(tf.range(tf.size(distinct)), block, len(variables))
    place = tf.math.invert_permutation(tf.concat(order, axis=0))
    where = tf.reshape(tf.gather(place, which), tf.shape(ids))
    counts = [tf.size(part) for part in parts]
    numbers, sent = _on_ps(variables, counts, parts)
    return Rows(variables, counts, numbers, sent, where)


def outside(error: tf.errors.InvalidArgumentError) -> str:
    """The sentence for a batch that names a row which its table does not have; "" if that is not
    the error."""
    found = re.search(rf"\[(\S+?)(/part_0)? {OUTSIDE} (\d+):\] \[(-?\d+)\]", error.message)
    return (
        f"a batch names row {found[4]} of {found[1]}, which has rows 0 to {found[3]}"
        if found
        else ""
    )


def _on_ps(blocks: Sequence, counts: Sequence, parts: Sequence) -> tuple[list, list]:
    """Sends each part to its block's ps: one transfer to each ps, which begins with the counts.
    Returns the parts there, and what was sent."""
    found, sent = [None] * len(blocks), []
    for device in dict.fromkeys(block.device for block in blocks):
        own = [k for k, block in enumerate(blocks) if block.device == device]
        flat = tf.concat([[counts[k] for k in own], *[parts[k] for k in own]], axis=0)
        with tf.device(device):
            there = tf.identity(flat)
            there = tf.split(there[len(own) :], there[: len(own)], num=len(own))
        sent.append(flat)
        for k, part in zip(own, there, strict=True):
            found[k] = part
    return found, sent


@scope("pull")
def pull(
    params: Sequence[tf.Variable],
    global_step: tf.Variable,
    after: tf.Tensor | None = None,
    beside: Sequence[tf.Tensor] = (),
    rows: Sequence[Rows] = (),
) -> Pull:
    """w <- w~: one transfer from each ps to the current device.

    Args:
        params: variables on the ps.
        global_step: the number of updates so far, a variable on a ps.
        after: the ps of `global_step` reads once this tensor on it is ready. Default: at once.
        beside: other tensors that travel here, such as a batch; `arrived_at` waits for them too.
        rows: of each table, the rows to pull; their numbers travel to the ps first.

    Raises:
        ValueError: if a parameter is too large to travel.
    """
    blocks, counts, numbers = _of_blocks(rows)
    parts = _transfers(params, blocks)
    asked_at = clock.now([])
    first = [] if after is None else [after]
    with tf.device(global_step.device), tf.control_dependencies(first):
        read_at = clock.now(first)
        with tf.control_dependencies([read_at]):
            count = global_step.read_value()
    variables = [*params, *blocks]
    on_ps: list = [None] * len(variables)
    arrived = []
    for part in parts:
        place = variables[part[0]].device
        wait = [count] if place == count.device else first  # no ps waits for another
        with tf.device(place), tf.control_dependencies(wait):
            for i in part:
                k = i - len(params)
                on_ps[i] = variables[i].read_value() if k < 0 else tf.gather(blocks[k], numbers[k])
            flat = _flat([on_ps[i] for i in part])
        arrived.append(tf.identity(flat))
    alone = [] if any(each.device == count.device for each in variables) else [count]
    arrived_at = clock.now([*arrived, *alone, *beside])
    w: list = [None] * len(variables)
    with tf.control_dependencies([arrived_at]):  # before computation occupies all threads
        for part, flat in zip(parts, arrived, strict=True):
            for i, value in zip(part, _shaped(flat, part, params, blocks, counts), strict=True):
                w[i] = value
        pulled = iter(w[len(params) :])
        tables = [tf.concat(list(itertools.islice(pulled, len(r.blocks))), axis=0) for r in rows]
    return Pull([*w[: len(params)], *tables], on_ps, count, read_at, asked_at, arrived_at)


def _of_blocks(rows: Sequence[Rows]) -> tuple[list, list, list]:
    """The blocks of all tables, how many rows of each travel, and which."""
    blocks, counts, numbers = [], [], []
    for each in rows:
        blocks += each.blocks
        counts += each.counts
        numbers += each.numbers
    return blocks, counts, numbers


@scope("count")
def in_place(params: Sequence[tf.Variable], global_step: tf.Variable) -> Pull:
    """The parameters themselves, for threads or devices that share this process's memory.

    Nothing is copied. To measure the staleness, use them under a control dependency on `count`.
    """
    with tf.device(global_step.device):
        read_at = clock.now([])
        with tf.control_dependencies([read_at]):
            count = global_step.read_value()
    return Pull(list(params), list(params), count, read_at)


@scope("push")
def send(
    values: Sequence[tf.Tensor], params: Sequence[tf.Variable], rows: Sequence[Rows] = ()
) -> Push:
    """Sends `values`, one per parameter, of its shape, to the parameters' ps, in one transfer each;
    changes nothing there.

    Args:
        values: what to send; after those of `params`, one per table, for the rows that were pulled.
        params: variables on the ps.
        rows: the rows of tables that were pulled.

    Raises:
        ValueError: if there are more or fewer values; if one is None, as is the gradient of a
            parameter that the loss does not depend on, or has another type than its parameter; or
            if one is too large to travel.
    """
    blocks, _, numbers = _of_blocks(rows)
    if len(values) != len(params) + len(rows):
        raise ValueError(
            f"copies.send got {len(values)} values for {len(params)} parameters"
            + (f" and {len(rows)} tables" if rows else "")
        )
    for value, param in zip(values, params):
        if isinstance(value, tf.IndexedSlices):
            _say_all_travels(param, value)
    values = _complete(values, [*params, *[each.blocks[0] for each in rows]])
    tables, values = values[len(params) :], values[: len(params)]
    for table, each in zip(tables, rows, strict=True):
        values += tf.split(table, each.counts, num=len(each.counts))
    variables = [*params, *blocks]
    computed_at = clock.now(values)
    arrived: list = [None] * len(variables)
    sent = [flat for each in rows for flat in each.sent]
    for part in _transfers(params, blocks):
        with tf.control_dependencies([computed_at]):
            sent.append(_flat([values[i] for i in part]))
        with tf.device(variables[part[0]].device):
            there = [tf.size(each) for each in numbers]
            shaped = _shaped(tf.identity(sent[-1]), part, params, blocks, there)
        for i, value in zip(part, shaped, strict=True):
            k = i - len(params)
            arrived[i] = value if k < 0 else tf.IndexedSlices(value, numbers[k])
    return Push(arrived, computed_at, sent)


def _say_all_travels(param: tf.Variable, value: tf.IndexedSlices) -> None:
    """Its gradient names the rows that were looked up."""
    size = param.shape.num_elements() * param.dtype.base_dtype.size
    # One worker tells it to the screen.
    start = "" if re.search(r"/task:[1-9]", value.values.device) else "> "
    print(f"{start}warning: a batch uses only rows of {param.op.name}, but all of it travels, "
          f"{size:,} bytes each way in every step: pull the rows with copies.rows",
          flush=True)  # fmt: skip


def _complete(values: Sequence, params: Sequence[tf.Variable]) -> list[tf.Tensor]:
    """The values as tensors, if there is one of the right type for each parameter."""
    found = []
    for value, param in zip(values, params):
        if value is None:
            raise ValueError(
                f"{param.op.name} has no gradient, since the loss does not depend on it: use it in "
                "the model, or leave it out of params (trainable=False)"
            )
        if isinstance(value, tf.IndexedSlices):  # a gradient of values that were looked up
            n = tf.cast(value.dense_shape[0], tf.int32)
            value = tf.math.unsorted_segment_sum(value.values, value.indices, n)
        found.append(tf.convert_to_tensor(value))
        if found[-1].dtype != param.dtype.base_dtype:
            raise ValueError(
                f"the value for {param.op.name} is {found[-1].dtype.name}, but the parameter is "
                f"{param.dtype.base_dtype.name}: cast it before copies.send"
            )
    return found


def local(params: Sequence[tf.Variable], value: float = 0.0) -> list[tf.Variable]:
    """Creates this task's own variables, one of each parameter's shape, on the current device.

    They are local variables: each worker initialises its own, and no checkpoint contains them. If a
    ps or this worker fails, they return to `value`. On a ps, where all workers would share them,
    this raises ValueError.
    """
    how = {"trainable": False, "collections": [tf.GraphKeys.LOCAL_VARIABLES]}
    own = [
        tf.Variable(functools.partial(tf.fill, p.shape, tf.cast(value, p.dtype.base_dtype)), **how)
        for p in params
    ]
    if any("/job:ps" in variable.device for variable in own):
        raise ValueError("copies.local makes local variables: call it in tf.device(task.device)")
    return own
