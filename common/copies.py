"""Pulls local copies of the global parameters, and sends values back.

A small transfer costs nearly as much as an empty one, so everything between this worker and one ps
travels as one flat tensor.
"""

import functools

import tensorflow.compat.v1 as tf

from common.training import graphs, measure


def _by_device(params) -> dict[str, list[int]]:
    places: dict[str, list[int]] = {}
    for i, param in enumerate(params):
        places.setdefault(param.device, []).append(i)
    return places


def _flat(tensors) -> tf.Tensor:
    return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], axis=0)


def _shaped(flat: tf.Tensor, params) -> list[tf.Tensor]:
    parts = tf.split(flat, [param.shape.num_elements() for param in params])
    return [tf.reshape(part, param.shape) for part, param in zip(parts, params, strict=True)]


@graphs.scope("pull")
def pull(params: list, global_step: tf.Variable, after: tf.Tensor | None = None, beside=()):
    """w <- w~: one transfer from each ps, once `after`, a tensor on a ps, is ready. The step's
    clock also waits for `beside`: other tensors that travel here, such as a batch.

    Returns:
        w, the values of `params` on the current device, in their order and shapes; and pulled_at,
        how many updates had been counted just before the read (int64, stays on its ps). With one ps
        that has one thread, w contains exactly these updates: a count and its update run back to
        back, and so do the reads here. With more ps or threads, they may overlap.
    """
    first = [] if after is None else [after]
    with tf.device(global_step.device), tf.control_dependencies(first):
        read_at = measure.now(first)
        with tf.control_dependencies([read_at]):
            pulled_at = global_step.read_value()
    w: list = [None] * len(params)
    there: list = [None] * len(params)
    arrived = {}
    for place, indices in _by_device(params).items():
        wait = [pulled_at] if place == pulled_at.device else first  # no ps waits for another
        with tf.device(place), tf.control_dependencies(wait):
            for i in indices:
                there[i] = params[i].read_value()
            sent = _flat([there[i] for i in indices])
        arrived[place] = tf.identity(sent)
    alone = [] if pulled_at.device in arrived else [pulled_at]  # a ps that holds only the count
    arrived_at = measure.now([*arrived.values(), *alone, *beside])
    with tf.control_dependencies([arrived_at]):  # before computation occupies all threads
        for place, indices in _by_device(params).items():
            here = [params[i] for i in indices]
            for i, value in zip(indices, _shaped(arrived[place], here), strict=True):
                w[i] = value
    for tensor in (pulled_at, *first):
        measure.note("read", tensor, read_at)
        measure.note("arrived", tensor, arrived_at)
    for value, original in zip(w, there):
        tf.add_to_collection(f"sent/{value.name}", original)
    return w, pulled_at


def still_on_ps(w: list[tf.Tensor]) -> list[tf.Tensor]:
    """The pulled values `w`, but still on their ps, so that they need not travel back."""
    return [tf.get_collection(f"sent/{value.name}")[0] for value in w]


@graphs.scope("push")
def send(values: list[tf.Tensor], params: list, device: str = "") -> list[tf.Tensor]:
    """Sends `values` in one transfer to each ps; changes nothing there.

    Args:
        values: one per parameter, of its shape.
        device: where all values go; default: each goes where its parameter is.

    Returns:
        The values as received.
    """
    computed_at = measure.now(values)
    arrived: list = [None] * len(params)
    places = {device: list(range(len(params)))} if device else _by_device(params)
    for place, indices in places.items():
        with tf.control_dependencies([computed_at]):
            sent = _flat([values[i] for i in indices])
        with tf.device(place):
            parts = _shaped(tf.identity(sent), [params[i] for i in indices])
        for i, value in zip(indices, parts, strict=True):
            arrived[i] = value
    for value in arrived:
        measure.note("computed", value, computed_at)
    return arrived


def local(params: list[tf.Variable], value: float = 0.0) -> list[tf.Variable]:
    """Creates this task's own variables, one of each parameter's shape, on the current device.

    They are local variables: each worker initialises its own, and no checkpoint contains them. If a
    ps or this worker fails, they return to `value`. On a ps, where all workers would share them,
    this raises ValueError.
    """
    how = {"trainable": False, "collections": [tf.GraphKeys.LOCAL_VARIABLES]}
    own = [tf.Variable(functools.partial(tf.fill, p.shape, value), **how) for p in params]
    if any("/job:ps" in variable.device for variable in own):
        raise ValueError("copies.local makes local variables: call it in tf.device(task.device)")
    return own
