"""Several steps in one call of the session: `--steps_per_execution`.

Around a small step, a call costs more than the step itself: Python, a message that makes each ps
start its part of the graph, another that clears it up. So the graph of a step is copied and the
copies are chained: the same steps, one after the other, in one call. Keras has the same idea and
the same name for it.
"""

import tensorflow.compat.v1 as tf

from common.training import graphs

SEEDS = ("seed", "seed2")


def copies(ends: list[tf.Operation], count: int) -> list[dict[tf.Operation, tf.Operation]]:
    """A chain of copies of a step.

    Args:
        ends: what a call without a chain would run.
        count: steps in one call.

    Returns:
        `count` dictionaries from the step's operations: to themselves, then to copies.

    What has a state in a copy (variables, queues, the data, clocks, loops) waits: on a ps for the
    end of the step before, as if the session had been called again; in this process only for what
    the step before did in this process, which is the same and spares a message.
    """
    runs, everything = graphs.needed(ends), ends[0].graph
    ops = [op for op in everything.get_operations() if op in runs and not _is_handle(op)]
    here = [op for op in ops if not graphs.on_ps(op) and op.type != "Const"]
    there = [op for op in ops if graphs.on_ps(op)]
    inner = {one for op in here for one in graphs.behind(op)}
    waits = [  # who waits, and for whose copies of the step before
        (list(filter(graphs.has_state, here)), [op for op in here if op not in inner]),
        (list(filter(graphs.has_state, there)), [op for op in ends if graphs.on_ps(op)]),
    ]
    functions = {f.signature.name: f for f in everything.as_graph_def().library.function}
    chain = [{op: op for op in ops}]
    for i in range(1, count):
        graph, given = tf.GraphDef(), {}
        for op in ops:
            node = graph.node.add()
            node.CopyFrom(op.node_def)
            node.attr.pop("_class", None)  # the devices are there; colocation names originals
            node.input[:] = [tensor.name for tensor in op.inputs]
            node.input.extend(f"^{o.name}" for o in op.control_inputs if o in chain[0])
            _reseed(node, i, functions, graph.library)
            given |= {tensor.name: tensor for tensor in op.inputs if tensor.op not in chain[0]}
        nodes = {node.name: node for node in graph.node}
        for k, (waiting, lasts) in enumerate(waits):
            if waiting:
                before = [chain[-1][op] for op in lasts]
                with tf.device(waiting[0].device), tf.control_dependencies(before):
                    given[f"^before_{k}"] = tf.constant(0)
            for op in waiting:
                nodes[op.name].input.append(f"^before_{k}")
        made = tf.import_graph_def(graph, given, [op.name for op in ops], name=f"step_{i}")
        chain.append(dict(zip(ops, made, strict=True)))
    return chain


def _reseed(node, i: int, functions: dict, library) -> None:
    """Random operations with a seed draw other numbers in each copy; also those in a loop's body.

    A loop names its body, one of `functions`; a changed one goes into `library` under a new name.
    """
    if all(name in node.attr for name in SEEDS) and any(node.attr[name].i for name in SEEDS):
        node.attr["seed2"].i += i * 1_000_003
    for value in node.attr.values():
        if value.HasField("func"):
            body = tf.GraphDef().library.function.add()
            body.CopyFrom(functions[value.func.name])
            for inner in body.node_def:
                _reseed(inner, i, functions, library)
            if body.node_def != functions[value.func.name].node_def:
                body.signature.name = value.func.name = f"{body.signature.name}_step_{i}"
                library.function.add().CopyFrom(body)


def _is_handle(op: tf.Operation) -> bool:
    """What names a variable, a queue or an iterator: the same for all copies."""
    return bool(not op.inputs and op.outputs and graphs.is_variable(op.outputs[0]))
