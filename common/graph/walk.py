"""Looks up in the graph what an operation needs and where it runs."""

from collections.abc import Iterable

import tensorflow.compat.v1 as tf


def operation(graph: tf.Graph, fetch) -> tf.Operation:
    """The operation behind anything that a session can fetch, such as a variable or a name."""
    found = graph.as_graph_element(fetch)
    return found if isinstance(found, tf.Operation) else found.op


def behind(op: tf.Operation) -> list[tf.Operation]:
    """The operations that `op` waits for directly."""
    return [*op.control_inputs, *(tensor.op for tensor in op.inputs)]


def needed(
    ends: Iterable[tf.Operation], among: set[tf.Operation] | None = None
) -> set[tf.Operation]:
    """All operations that run when `ends` run, including them; `among` limits the search."""
    found, to_see = set(), list(ends)
    while to_see:
        op = to_see.pop()
        if op not in found and (among is None or op in among):
            found.add(op)
            to_see += behind(op)
    return found


def is_variable(tensor: tf.Tensor) -> bool:
    """Whether it is a resource, or a reference to a variable of the older kind."""
    return tensor.dtype == tf.resource or tensor.dtype != tensor.dtype.base_dtype


def on_ps(op: tf.Operation) -> bool:
    """Whether it runs on a ps. An operation without a device runs where its variable is."""
    if op.device:
        return "/job:ps" in op.device
    return any(on_ps(tensor.op) for tensor in op.inputs if is_variable(tensor))
