"""Pulls local copies of the global parameters, and sends values back.

A small transfer costs nearly as much as an empty one, so everything between this worker and one ps
travels as one flat tensor for each type of number.
"""

import functools
from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from common.graph import clock
from common.graph.scope import scope
from common.records import Pull, Push

LARGEST = 2**31 - 1  # bytes of a tensor that can travel: the limit of a protocol buffer


def _transfers(params: Sequence) -> list[list[int]]:
    """Which parameters travel together: those of one type on one ps, in parts of at most `LARGEST`
    bytes.

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
    return parts


def _flat(tensors: Sequence) -> tf.Tensor:
    return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], axis=0)


def _shaped(flat: tf.Tensor, params: Sequence) -> list[tf.Tensor]:
    parts = tf.split(flat, [param.shape.num_elements() for param in params])
    return [tf.reshape(part, param.shape) for part, param in zip(parts, params, strict=True)]


@scope("pull")
def pull(
    params: Sequence[tf.Variable],
    global_step: tf.Variable,
    after: tf.Tensor | None = None,
    beside: Sequence[tf.Tensor] = (),
) -> Pull:
    """w <- w~: one transfer from each ps to the current device.

    Args:
        params: variables on the ps.
        global_step: the number of updates so far, a variable on a ps.
        after: the ps of `global_step` reads once this tensor on it is ready. Default: at once.
        beside: other tensors that travel here, such as a batch; `arrived_at` waits for them too.

    Raises:
        ValueError: if a parameter is too large to travel.
    """
    parts = _transfers(params)
    asked_at = clock.now([])
    first = [] if after is None else [after]
    with tf.device(global_step.device), tf.control_dependencies(first):
        read_at = clock.now(first)
        with tf.control_dependencies([read_at]):
            count = global_step.read_value()
    on_ps: list = [None] * len(params)
    arrived = []
    for part in parts:
        place = params[part[0]].device
        wait = [count] if place == count.device else first  # no ps waits for another
        with tf.device(place), tf.control_dependencies(wait):
            for i in part:
                on_ps[i] = params[i].read_value()
            flat = _flat([on_ps[i] for i in part])
        arrived.append(tf.identity(flat))
    alone = [] if any(each.device == count.device for each in params) else [count]
    arrived_at = clock.now([*arrived, *alone, *beside])
    w: list = [None] * len(params)
    with tf.control_dependencies([arrived_at]):  # before computation occupies all threads
        for part, flat in zip(parts, arrived, strict=True):
            for i, value in zip(part, _shaped(flat, [params[i] for i in part]), strict=True):
                w[i] = value
    return Pull(w, on_ps, count, read_at, asked_at, arrived_at)


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
def send(values: Sequence[tf.Tensor], params: Sequence[tf.Variable]) -> Push:
    """Sends `values`, one per parameter, of its shape, to the parameters' ps, in one transfer each;
    changes nothing there.

    Raises:
        ValueError: if a value is None, as is the gradient of a parameter that the loss does not
            depend on, or has another type than its parameter; or if one is too large to travel.
    """
    values = _complete(values, params)
    computed_at = clock.now(values)
    arrived: list = [None] * len(params)
    for part in _transfers(params):
        own = [params[i] for i in part]
        flat = _flat([values[i] for i in part])
        with tf.control_dependencies([computed_at]):  # `checks.py` knows what is sent by this
            flat = tf.identity(flat)
        with tf.device(own[0].device):
            shaped = _shaped(tf.identity(flat), own)
        for i, value in zip(part, shaped, strict=True):
            arrived[i] = value
    return Push(arrived, computed_at)


def _complete(values: Sequence, params: Sequence[tf.Variable]) -> list[tf.Tensor]:
    """The values as tensors, if there is one of the right type for each parameter."""
    if len(values) != len(params):
        raise ValueError(f"copies.send got {len(values)} values for {len(params)} parameters")
    found = []
    for value, param in zip(values, params):
        if value is None:
            raise ValueError(
                f"{param.op.name} has no gradient, since the loss does not depend on it: use it in "
                "the model, or leave it out of params (trainable=False)"
            )
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
