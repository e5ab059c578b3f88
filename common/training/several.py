"""Several steps in one call of the session: `--steps_per_execution`.

A call costs more than a small step: Python, a message that makes each ps start its part of the
graph, another that cleans up. So this module copies the graph of a step and chains the copies: one
call takes the same steps, one after another. Keras has the same option under the same name.
"""

import tensorflow.compat.v1 as tf

from common.graph import walk

SEEDS = ("seed", "seed2")


def copies(
    step: list[tf.Operation], puts: list[tf.Operation], count: int
) -> list[dict[tf.Operation, tf.Operation]]:
    """Makes a chain of copies of a step.

    Args:
        step: what a call without a chain would run.
        puts: the operations that record the step, run with it.
        count: steps in one call.

    Returns:
        `count` dictionaries: the step's operations -> themselves, or their copies.

    In a copy, operations with state (variables, queues, the data, clocks, loops) wait. On a ps they
    wait for the end of the step before, as in a new call of the session. In this process they wait
    only for what that step did in this process, which has the same effect and saves a message.
    """
    runs, everything = walk.needed([*step, *puts]), step[0].graph
    ops = [op for op in everything.get_operations() if op in runs and not _is_shared(op)]
    here = [op for op in ops if not walk.on_ps(op) and op.type != "Const"]
    there = [op for op in ops if walk.on_ps(op)]
    inner = {one for op in here for one in walk.behind(op)}
    waits = [  # operations that wait, and those whose previous copies they wait for
        (list(filter(_has_state, here)), [op for op in here if op not in inner]),
        (list(filter(_has_state, there)), [*step, *filter(walk.on_ps, puts)]),
    ]
    functions = {f.signature.name: f for f in everything.as_graph_def().library.function}
    chain = [{op: op for op in ops}]
    beyond = _beyond(ops)
    for i in range(1, count):
        graph, given = tf.GraphDef(), {}
        if i == count - 1:  # the caller may fetch its values
            ops = ops + beyond
        inside = set(ops)
        for op in ops:
            node = graph.node.add()
            node.CopyFrom(op.node_def)
            node.attr.pop("_class", None)  # devices are set; colocation would name the originals
            node.input[:] = [tensor.name for tensor in op.inputs]
            node.input.extend(f"^{o.name}" for o in op.control_inputs if o in inside)
            _reseed(node, i, functions, graph.library)
            given |= {tensor.name: tensor for tensor in op.inputs if tensor.op not in inside}
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


def of(copy: dict[tf.Operation, tf.Operation], fetches):
    """The copies of `fetches`, in the same structure; what has no copy stays as it is."""

    graph = next(iter(copy)).graph

    def one(fetch):
        element, op = graph.as_graph_element(fetch), walk.operation(graph, fetch)
        found = copy.get(op, op)
        return found if op is element else found.outputs[element.value_index]

    if fetches is None:
        return None
    return tf.nest.map_structure(one, fetches, expand_composites=True)


def _reseed(node, i: int, functions: dict, library) -> None:
    """Gives random operations, even in a loop's body, a different seed in each copy.

    A loop names its body, one of `functions`; a changed body goes to `library` under a new name.
    """
    if all(name in node.attr for name in SEEDS) and any(node.attr[name].i for name in SEEDS):
        node.attr["seed2"].i += i * 1_000_003
    for value in node.attr.values():
        for called in [value.func] if value.HasField("func") else value.list.func:
            body = tf.GraphDef().library.function.add()
            body.CopyFrom(functions[called.name])
            for inner in body.node_def:
                _reseed(inner, i, functions, library)
            if body.node_def != functions[called.name].node_def:
                body.signature.name = called.name = f"{body.signature.name}_step_{i}"
                library.function.add().CopyFrom(body)


def _has_state(op: tf.Operation) -> bool:
    """Whether it is random, or uses a variable, a queue, a clock or the data."""
    return op.op_def.is_stateful or any(map(walk.is_variable, op.inputs))


def _is_shared(op: tf.Operation) -> bool:
    """Whether all copies share it: it is fed, or names a variable, a queue or an iterator."""
    names = not op.inputs and op.outputs and walk.is_variable(op.outputs[0])
    return op.type.startswith("Placeholder") or bool(names)


def _beyond(ops: list[tf.Operation]) -> list[tf.Operation]:
    """What the graph computes from the step but the step does not need."""
    known, found = set(ops), []
    for op in ops[0].graph.get_operations():  # in order of creation: inputs first
        if not (op in known or _is_shared(op) or known.isdisjoint(walk.behind(op))):
            known.add(op)
            found.append(op)
    return found
