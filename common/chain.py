"""Several complete steps in one call of the session.

Around a small step, a call costs more than the step itself: Python, a message that makes each ps
start its part of the graph, another that clears it up. So the graph of a step is copied, and the
copies are chained: the same steps, one after the other, in fewer calls. Keras has the same idea as
`steps_per_execution`.
"""

import math
import time
from collections.abc import Iterator, Sequence

import tensorflow.compat.v1 as tf

LENGTH = 10  # steps in one call, while a step takes less than
SHORT = 0.01  # seconds


class Chain:
    """A step again and again, and what is noted of it.

    The last of all updates may come in the middle of a chain, which ends it with an error. What was
    noted until then is kept: each step puts it into queues where it comes to be, before the next
    step begins. After any other error, as with a lost ps, the notes of that chain are lost.
    """

    def __init__(self, step: tf.Operation, values: Sequence[Sequence[tf.Tensor]], owner: str):
        """
        Args:
            step: what a call without a chain would run.
            values: numbers to note of every step, in groups; each group is on one device.
            owner: makes the names of the queues unique in the cluster.
        """
        queues, notes = [], []
        for i, group in enumerate(values):
            with tf.device(group[0].device):
                kinds = [value.dtype for value in group], [value.shape for value in group]
                queues.append(tf.FIFOQueue(-1, *kinds, shared_name=f"noted/{owner}/{i}"))
                notes.append(queues[-1].enqueue(group))
        self.values = [_rows([value[tf.newaxis] for value in group])[0] for group in values]
        self._single = [step, *self.values]
        copies = _copies(step, notes)
        last = [copies[-1][op.name] for op in (step, *notes)]
        with tf.control_dependencies(last):
            self._noted = [_rows(queue.dequeue_many(LENGTH)) for queue in queues]
        self._left = [_rows(queue.dequeue_many(queue.size())) for queue in queues]

    def prepare(self, session: tf.Session) -> None:
        """For a new session, or after an error; what a chain that broke has left behind is lost."""
        self._session, self._seconds = session, math.inf  # that a step takes
        self._one = session.make_callable(self._single)
        self._several = session.make_callable(self._noted)
        session.run(self._left)
        self._broken = False

    def run(self, at_most: int = LENGTH) -> Iterator[Sequence]:
        """Makes one step or, where it has turned out to be short, `LENGTH`, if as many are wanted.

        Yields:
            Of each step the values, an array (float64) of each group; where a chain breaks, of
            those steps that were made.

        Raises:
            tf.errors.OpError: what broke it, after the last of them.
        """
        if self._broken:
            self.prepare(self._session)
        began = time.monotonic()
        try:
            if self._seconds < SHORT and at_most >= LENGTH:
                steps = list(zip(*self._several()))
            else:
                steps = [self._one()[1:]]
        except tf.errors.OutOfRangeError:
            yield from zip(*self._session.run(self._left))
            raise
        except tf.errors.OpError:
            # A ps is lost or out of reach: its part of the notes may be missing.
            self._broken = True
            raise
        self._seconds = (time.monotonic() - began) / len(steps)
        yield from steps


def _rows(parts: Sequence[tf.Tensor]) -> tf.Tensor:
    """The parts of a group, each of several steps: a row for a step, and one transfer for all."""
    with tf.device(parts[0].device):
        flat = [tf.reshape(part, [-1, part.shape[1:].num_elements()]) for part in parts]
        return tf.concat([tf.cast(part, tf.float64) for part in flat], axis=1)


def _copies(step: tf.Operation, notes: list[tf.Operation]) -> list[dict[str, tf.Operation]]:
    """The step's graph, and `LENGTH` - 1 copies of it; each maps an operation's name to it.

    What has a state in a copy (variables, queues, the data, clocks, loops) waits: on a ps for the
    end of the step before, as if the session had been called again; in this process only for what
    the step before did in this process, which is the same and spares a message.
    """
    moving = _moving([step, *notes])
    names = {op.name for op in moving}
    here = [op for op in moving if not _on_ps(op) and op.type != "Const"]
    going_on = {behind.name for op in here for behind in _behind(op)}
    gates = {  # a name for it: who waits, and for whom
        "^here": (here, [op.name for op in here if op.name not in going_on]),
        "^ps": (
            [op for op in moving if _on_ps(op)],
            [step.name, *(note.name for note in notes if _on_ps(note))],
        ),
    }
    waits = {op.name: gate for gate, (who, _) in gates.items() for op in who if _has_state(op)}
    copies = [{op.name: op for op in moving}]
    for _ in range(1, LENGTH):
        given, copy = {}, tf.GraphDef()
        for gate, (who, ends) in gates.items():
            if gate in waits.values():
                ended = [copies[-1][name] for name in ends]
                with tf.device(who[0].device), tf.control_dependencies(ended):
                    given[gate] = tf.constant(0)
        for op in moving:
            node = copy.node.add()
            node.CopyFrom(op.node_def)
            node.attr.pop("_class", None)  # the devices are there; colocation names originals
            node.input[:] = [tensor.name for tensor in op.inputs]
            node.input.extend(f"^{o.name}" for o in op.control_inputs if o.name in names)
            node.input.extend([waits[op.name]] if op.name in waits else [])
            given |= {tensor.name: tensor for tensor in op.inputs if tensor.op.name not in names}
        made = tf.import_graph_def(copy, given, [op.name for op in moving], name="again")
        copies.append({op.name: copied for op, copied in zip(moving, made, strict=True)})
    return copies


def _behind(op: tf.Operation) -> list[tf.Operation]:
    return [*op.control_inputs, *(tensor.op for tensor in op.inputs)]


def _moving(ends: list[tf.Operation]) -> list[tf.Operation]:
    """Of all that `ends` need, what is done anew in every step: not handles, not constants."""
    needed, to_see = set(), list(ends)
    while to_see:
        op = to_see.pop()
        if op.name not in needed:
            needed.add(op.name)
            to_see += _behind(op)
    moving: dict[str, tf.Operation] = {}
    for op in ends[0].graph.get_operations():  # each after those that it needs
        handle = not op.inputs and op.outputs and _is_variable(op.outputs[0])
        if op.name not in needed or handle:
            continue
        if _has_state(op) or any(behind.name in moving for behind in _behind(op)):
            moving[op.name] = op
    return list(moving.values())


def _is_variable(tensor: tf.Tensor) -> bool:
    """A resource, or a reference to the memory of a variable that is none."""
    return tensor.dtype == tf.resource or tensor.dtype != tensor.dtype.base_dtype


def _has_state(op: tf.Operation) -> bool:
    return op.op_def.is_stateful or any(map(_is_variable, op.inputs))


def _on_ps(op: tf.Operation) -> bool:
    """An operation without a device goes where its variable is."""
    if op.device:
        return "/job:ps" in op.device
    return any(_on_ps(tensor.op) for tensor in op.inputs if _is_variable(tensor))
