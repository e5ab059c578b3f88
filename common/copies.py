"""Local copies of global parameters, and the way back: pull and push.

A transfer costs nearly the same whether it carries little or nothing, so everything that travels
between this worker and one ps travels as one flat tensor.
"""

import functools

import tensorflow.compat.v1 as tf


def noted_at(tensor: tf.Tensor) -> str:
    """The graph collection that holds a time noted for `tensor`, in seconds since 1970: of a pull,
    when it had arrived and nothing was computed yet; of a count, just before it was taken."""
    return f"noted_at/{tensor.name}"


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


def local(params: list[tf.Variable], value: float = 0.0) -> list[tf.Variable]:
    """This worker's own variables, one of each parameter's shape, on the current device.

    They are local variables: every worker has and initialises its own, and no checkpoint holds
    them. A failure of a ps, or of this worker, brings them back to `value`.
    """
    return [
        tf.Variable(
            functools.partial(tf.fill, param.shape, value),
            trainable=False,
            collections=[tf.GraphKeys.LOCAL_VARIABLES],
        )
        for param in params
    ]


def pull(params: list[tf.Variable], after: tf.Tensor | None = None) -> list[tf.Tensor]:
    """w <- w~: the parameters' values on the current device, in the same order and shapes.

    `after`, the count of the updates so far, is read before the parameters on the same ps are: so
    the staleness misses none that is counted later. (No ps waits for another one.)
    """
    w: list = [None] * len(params)
    arrived = {}
    for place, indices in _by_device(params).items():
        first = [after] if after is not None and after.device == place else []
        with tf.device(place), tf.control_dependencies(first):
            sent = _flat([params[i].read_value() for i in indices])
        arrived[place] = tf.identity(sent)
    with tf.control_dependencies(arrived.values()):
        now = tf.timestamp()  # noted before anything is computed, which may keep all threads busy
    with tf.control_dependencies([now]):
        for place, indices in _by_device(params).items():
            here = [params[i] for i in indices]
            for i, value in zip(indices, _shaped(arrived[place], here), strict=True):
                w[i] = value
    tf.add_to_collection(noted_at(w[0]), now)
    return w


def push(values: list[tf.Tensor], params: list, device: str = "") -> list[tf.Tensor]:
    """`values` (one per parameter, its shape), each on its parameter's device, or all on one."""
    arrived: list = [None] * len(params)
    places = {device: list(range(len(params)))} if device else _by_device(params)
    for place, indices in places.items():
        sent = _flat([values[i] for i in indices])
        with tf.device(place):
            parts = _shaped(tf.identity(sent), [params[i] for i in indices])
        for i, value in zip(indices, parts, strict=True):
            arrived[i] = value
    return arrived
