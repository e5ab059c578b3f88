"""Questions to the graph: what does an operation need, and where does it run?"""

import functools
from collections.abc import Callable, Iterable

import tensorflow.compat.v1 as tf


def scope(name: str) -> Callable:
    """A decorator: TensorBoard shows a function's operations, of all calls, as one box of that
    name; those within another box, as one box for each call."""

    def decorate(function):
        @functools.wraps(function)
        def scoped(*args, **more):
            top = not tf.get_default_graph().get_name_scope()
            with tf.name_scope(f"{name}/" if top else name):  # with /, again the same
                return function(*args, **more)

        return scoped

    return decorate


def operation(graph: tf.Graph, fetch) -> tf.Operation:
    """The operation that makes something that a session may run: also a variable, or a name."""
    found = graph.as_graph_element(fetch)
    return found if isinstance(found, tf.Operation) else found.op


def behind(op: tf.Operation) -> list[tf.Operation]:
    """What an operation waits for directly."""
    return [*op.control_inputs, *(tensor.op for tensor in op.inputs)]


def needed(ends: Iterable[tf.Operation]) -> set[tf.Operation]:
    """All that runs when `ends` are run, themselves included."""
    found, to_see = set(), list(ends)
    while to_see:
        op = to_see.pop()
        if op not in found:
            found.add(op)
            to_see += behind(op)
    return found


def is_variable(tensor: tf.Tensor) -> bool:
    """A resource, or a reference to the memory of a variable of the older kind."""
    return tensor.dtype == tf.resource or tensor.dtype != tensor.dtype.base_dtype


def on_ps(op: tf.Operation) -> bool:
    """Whether it runs on a ps. An operation without a device goes where its variable is."""
    if op.device:
        return "/job:ps" in op.device
    return any(on_ps(tensor.op) for tensor in op.inputs if is_variable(tensor))
