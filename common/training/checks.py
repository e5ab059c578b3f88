"""Checks that every update is counted first. Only the chief checks, as all graphs are the same."""

import tensorflow.compat.v1 as tf

from common.training.graphs import behind, is_variable, needed, on_ps


def check_updates(params: list[tf.Variable], step: tf.Operation, number: tf.Tensor) -> None:
    """Checks that every update of the global parameters waits for its number, and runs on the ps.

    Otherwise an update could be applied without being counted, or a pull could come between the
    count and the update: the events would not describe what happened.

    Raises:
        ValueError: if not; it names the parameter and says what to do.
    """
    handles = {param.handle.op if hasattr(param, "handle") else param.op: param for param in params}
    runs = needed([step])
    reads = ("ReadVariableOp", "VariableShape", "ResourceGather", "Identity", "VarIsInitializedOp")
    after = {number.op}  # what runs after the count, including the count
    for op in number.graph.get_operations():  # in order of creation: inputs first
        if op in runs and not after.isdisjoint(behind(op)):
            after.add(op)
    for op in runs:
        inputs = [(i, t.op) for i, t in enumerate(op.inputs) if t.op in handles and is_variable(t)]
        if not inputs or op.type in reads:
            continue
        # A loop, a branch or a function call lists the inputs that it only reads.
        only_read = op.node_def.attr["_read_only_resource_inputs"].list.i
        changed = [handles[handle] for i, handle in inputs if i not in only_read]
        if not changed:
            continue
        name, inside = changed[0].op.name, "with session.next_update(...) as number:"
        if op not in after:
            raise ValueError(
                f"{op.name} changes {name} without waiting for the number of the update: put it "
                f"inside `{inside}`"
            )
        astray = [o for o in needed([op], after) if o.device != number.device and not on_ps(o)]
        if number.device and astray:
            raise ValueError(
                f"{astray[0].name} is part of the update of {name}, but is not computed on the ps: "
                f"put it inside `{inside}`, or under `tf.device({name}.device)`"
            )
