"""Several steps in one call of the session: `--steps_per_execution`.

Around a small step, a call costs more than the step itself: Python, a message that makes each ps
start its part of the graph, another that clears it up. So the graph of a step is copied and the
copies are chained: the same steps, one after the other, in one call. Keras has the same idea and
the same name for it.
"""

from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from common.training import graphs

SEEDS = ("seed", "seed2")


class Several:
    """A chain of copies of a step.

    The last of all updates may come in the middle of a chain and ends it with an error. So each
    step puts its row of numbers into a queue where the row comes to be, and a call ends by taking
    them all; after an error they are taken from the queue by hand.
    """

    def __init__(self, step: tf.Operation, rows: Sequence[tf.Tensor], count: int, name: str):
        """
        Args:
            step: what a call without a chain would run.
            rows: numbers to note of every step, each [n], float64.
            count: steps in one call.
            name: makes the names of the queues unique in the cluster.
        """
        queues, puts = [], []
        for i, row in enumerate(rows):
            with tf.device(row.device):
                queues.append(tf.FIFOQueue(-1, row.dtype, row.shape, shared_name=f"{name}/{i}"))
                puts.append(queues[-1].enqueue(row))
        self._copies = _copies(step, puts, count)
        ends = [self._copies[-1][op] for op in (step, *puts)]
        self.noted, self._left = [], []
        for queue in queues:  # of each row, a matrix of all steps of the call
            with tf.device(queue.queue_ref.device):
                with tf.control_dependencies(ends):
                    self.noted.append(queue.dequeue_many(count))
                self._left.append(queue.dequeue_many(queue.size()))

    def last(self, fetch):
        """The operation or tensor of the last step that is `fetch` in the first."""
        element = tf.get_default_graph().as_graph_element(fetch)
        op = element if isinstance(element, tf.Operation) else element.op
        copy = self._copies[-1].get(op, op)
        return copy if op is element else copy.outputs[element.value_index]

    def left(self, session: tf.Session) -> list:
        """The rows of the steps that a broken call has made."""
        rows = session.run(self._left)
        whole = min(map(len, rows))
        return [row[:whole] for row in rows]

    def forget(self, session: tf.Session) -> None:
        """For a new session: what a call with a lost ps has left is of steps that are lost."""
        session.run(self._left)


def _copies(step: tf.Operation, puts: list[tf.Operation], count: int) -> list[dict]:
    """`count` dictionaries from the step's operations: to themselves, then to copies.

    What has a state in a copy (variables, queues, the data, clocks, loops) waits: on a ps for the
    end of the step before, as if the session had been called again; in this process only for what
    the step before did in this process, which is the same and spares a message.
    """
    ends = [step, *puts]
    runs = graphs.needed(ends)
    ops = [op for op in step.graph.get_operations() if op in runs and not _is_shared(op)]
    here = [op for op in ops if not _on_ps(op) and op.type != "Const"]
    there = [op for op in ops if _on_ps(op)]
    inner = {one for op in here for one in graphs.behind(op)}
    waits = [  # who waits, and for whose copies of the step before
        (list(filter(graphs.has_state, here)), [op for op in here if op not in inner]),
        (list(filter(graphs.has_state, there)), [step, *(put for put in puts if _on_ps(put))]),
    ]
    functions = {f.signature.name: f for f in step.graph.as_graph_def().library.function}
    copies = [{op: op for op in ops}]
    beyond = _beyond(ops)
    for i in range(1, count):
        graph, given = tf.GraphDef(), {}
        if i == count - 1:  # its values may be fetched
            ops = ops + beyond
        inside = set(ops)
        for op in ops:
            node = graph.node.add()
            node.CopyFrom(op.node_def)
            node.attr.pop("_class", None)  # the devices are there; colocation names originals
            node.input[:] = [tensor.name for tensor in op.inputs]
            node.input.extend(f"^{o.name}" for o in op.control_inputs if o in inside)
            _reseed(node, i, functions, graph.library)
            given |= {tensor.name: tensor for tensor in op.inputs if tensor.op not in inside}
        nodes = {node.name: node for node in graph.node}
        for k, (waiting, lasts) in enumerate(waits):
            if waiting:
                before = [copies[-1][op] for op in lasts]
                with tf.device(waiting[0].device), tf.control_dependencies(before):
                    given[f"^before_{k}"] = tf.constant(0)
            for op in waiting:
                nodes[op.name].input.append(f"^before_{k}")
        made = tf.import_graph_def(graph, given, [op.name for op in ops], name=f"step_{i}")
        copies.append(dict(zip(ops, made, strict=True)))
    return copies


def _reseed(node, i: int, functions: dict, library) -> None:
    """Random operations with a seed draw other numbers in each copy; also those in a loop's body.

    A loop names its body, one of `functions`; a changed one goes into `library` under a new name.
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


def _is_shared(op: tf.Operation) -> bool:
    """The same for all copies: what is fed, what names a variable, a queue or an iterator."""
    names = not op.inputs and op.outputs and graphs.is_variable(op.outputs[0])
    return op.type.startswith("Placeholder") or bool(names)


def _beyond(ops: list[tf.Operation]) -> list[tf.Operation]:
    """What the graph computes from the step, though the step does not need it."""
    known, found = set(ops), []
    for op in ops[0].graph.get_operations():  # each after those that it waits for
        if not (op in known or _is_shared(op) or known.isdisjoint(graphs.behind(op))):
            known.add(op)
            found.append(op)
    return found


def _on_ps(op: tf.Operation) -> bool:
    """An operation without a device goes where its variable is."""
    if op.device:
        return "/job:ps" in op.device
    return any(_on_ps(tensor.op) for tensor in op.inputs if graphs.is_variable(tensor))
