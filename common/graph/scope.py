"""Names the boxes in TensorBoard's graph."""

import functools
from collections.abc import Callable

import tensorflow.compat.v1 as tf


def scope(name: str) -> Callable:
    """Decorator: groups a function's operations, so TensorBoard shows one box named `name` for all
    calls; inside another box, one for each call."""

    def decorate(function):
        @functools.wraps(function)
        def scoped(*args, **more):
            top = not tf.get_default_graph().get_name_scope()
            with tf.name_scope(f"{name}/" if top else name):  # with /, the same scope again
                return function(*args, **more)

        return scoped

    return decorate
