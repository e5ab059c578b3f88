"""Is every update counted first? The chief asks, for all workers: they have the same graph."""

import tensorflow.compat.v1 as tf

from common.training.graphs import behind, is_variable, needed, on_ps


def check_updates(params: list[tf.Variable], step: tf.Operation, number: tf.Tensor) -> None:
    """Every update of the global parameters is made under its number, on the ps.

    Otherwise an update may be applied that was never counted, or a pull may come between the count
    and the update: the run would not be what its events say.

    Raises:
        ValueError: names the parameter, and says what to do.
    """
    handles = {param.handle.op if hasattr(param, "handle") else param.op: param for param in params}
    runs = needed([step])
    reads = ("ReadVariableOp", "VariableShape", "ResourceGather", "Identity", "VarIsInitializedOp")
    after = {number.op}  # what runs after the count, itself included
    for op in number.graph.get_operations():  # each after those that it waits for
        if op in runs and not after.isdisjoint(behind(op)):
            after.add(op)
    for op in runs:
        inputs = [(i, t.op) for i, t in enumerate(op.inputs) if t.op in handles and is_variable(t)]
        if not inputs or op.type in reads:
            continue
        # A loop, a branch or a call of a function says which of its inputs it only reads.
        only_read = op.node_def.attr["_read_only_resource_inputs"].list.i
        changed = [handles[handle] for i, handle in inputs if i not in only_read]
        if not changed:
            continue
        name, inside = changed[0].op.name, "with session.next_update(...) as number:"
        if op not in after:
            raise ValueError(
                f"{op.name} changes {name} without waiting for the number of the update: write it "
                f"inside `{inside}`"
            )
        astray = [o for o in needed([op]) & after if o.device != number.device and not on_ps(o)]
        if number.device and astray:
            raise ValueError(
                f"{astray[0].name} is part of the update of {name}, but is not computed on the ps: "
                f"write it inside `{inside}`, or under `tf.device({name}.device)`"
            )
