"""Checks, when the graph is built, that a step does what the script says.

TensorFlow would run all that is refused here: and it would count wrongly, measure wrongly, train
only a part, or wait for ever.
"""

from collections.abc import Collection, Sequence

import tensorflow.compat.v1 as tf

from common.graph.walk import behind, is_variable, needed, on_ps
from common.records import Push, Update
from common.training.measured import Replica

INSIDE = "with session.next_update(...) as update:"
READS = ("ReadVariableOp", "VariableShape", "ResourceGather", "Identity", "VarIsInitializedOp")
PYTHON = ("PyFunc", "PyFuncStateless", "EagerPyFunc")


def check(
    task, params: Sequence, global_step, replicas: Sequence[Replica], in_rounds: bool
) -> None:
    """Checks the step of each replica, and where the variables are.

    `in_rounds`: the updates are not in these steps; `check_update` has checked them.

    Raises:
        ValueError: if something is wrong; it says what to do.
    """
    for replica in replicas:
        if replica.update is None:
            raise ValueError(
                "session.Replica(...) has no update: pass what `with session.next_update(...) as "
                "update` gives, or the token of rounds.wait()"
            )
        _check_parts(replica, in_rounds)
    if task.hosts:
        _check_places()
    _check_trainable(params)
    together: dict[tf.Operation, list[Replica]] = {}  # replicas may share a step and its update
    for replica in replicas:
        together.setdefault(replica.step, []).append(replica)
    for step, sharing in together.items():
        if in_rounds:
            _check_no_change(params, global_step, step)
            continue
        pushes = [each.push for each in sharing if each.push]
        check_update(params, global_step, step, sharing[0].update, pushes)


def _check_parts(replica: Replica, in_rounds: bool) -> None:
    """What is measured must be what the step does."""
    runs = needed([replica.step, replica.loss.op])
    pull, push, update, token = replica.pull, replica.push, replica.update, replica.token
    number = "the token of rounds.wait()" if in_rounds else f"that of `{INSIDE}`"
    parts = [("update", [update.number], number)]
    if pull is not None and pull.arrived_at is not None:
        parts.append(("pull", pull.w, "the one whose pull.w the step uses"))
    if push is not None:
        parts.append(("push", push.values, "the one that the update, or rounds.push, uses"))
    if token is not None:
        parts.append(("token", [token.number], "the one that the step's pull waits for"))
    for name, tensors, right in parts:
        ops = [each.op for each in tf.nest.flatten(tensors, expand_composites=True)]
        if runs.isdisjoint(ops):
            raise ValueError(
                f"the {name} in session.Replica(...) is no part of {replica.step.name}, so the "
                f"events would be wrong: pass {right}"
            )


def check_sent(params: Sequence, push: Push) -> None:
    """Checks that the values of a push, one per parameter, come from where copies.send has sent
    them, and not by way of a worker.

    Raises:
        ValueError: if one does, and its parameter is on a ps; or if there are rows of tables.
    """
    if len(push.values) != len(params):
        raise ValueError(
            f"rounds.push got {len(push.values)} values for {len(params)} parameters: rounds do "
            "not carry rows of tables, only asynchronous updates do"
        )
    sent = {tensor.op for tensor in push.sent}
    for param, value in zip(params, push.values, strict=True):
        for op in _used(value.op, sent):
            if on_ps(param.op) and not on_ps(op):
                raise ValueError(_not_on_ps(op, param.op.name))


def _not_on_ps(op: tf.Operation, name: str) -> str:
    return (
        f"{op.name}, which the update of {name} uses, is not computed on the ps, so more travels "
        f"than the events say: change gradients before copies.send, or inside `{INSIDE}`; make "
        "optimizers, schedules and constants there, too; and use pull.on_ps there, not pull.w"
    )


def _check_no_change(params: Sequence, global_step, step: tf.Operation) -> None:
    """In rounds, a worker only pushes."""
    known = {_handle(param): param for param in [*params, global_step]}
    for op in needed([step]):
        for handle in _changed(op):
            if handle in known:
                raise ValueError(
                    f"{op.name}, in the step of a worker, changes {known[handle].op.name}: in "
                    "rounds only the chief does, between rounds.gather and rounds.release"
                )


def _check_places() -> None:
    """All workers share the global variables, so these must be on a ps."""
    for variable in tf.global_variables():
        if not on_ps(variable.op):
            raise ValueError(
                f"{variable.op.name} is a global variable, but not on a ps: all workers would "
                "wait for each other to initialise it. Make it in `with tf.device("
                "tf.train.replica_device_setter(cluster=task.cluster)):`, or make it this worker's "
                "own, with collections=[tf.GraphKeys.LOCAL_VARIABLES]. (A Keras layer makes its "
                "variables when it is built.)"
            )


def _check_trainable(params: Sequence) -> None:
    """A trainable variable that is not among the parameters would not be trained."""
    known = {param.ref() for param in params}
    for variable in tf.trainable_variables():
        if variable.ref() not in known:
            raise ValueError(
                f"{variable.op.name} is trainable, but not among the params of session.training, "
                "so it would never be trained: pass it, or make it with trainable=False"
            )


def check_update(
    params: Sequence,
    global_step: tf.Variable,
    step: tf.Operation,
    update: Update,
    pushes: Sequence[Push] = (),
) -> None:
    """Checks that every change of the global parameters is counted once, waits for its number, and
    is computed on the ps, of what is there and of what `pushes` have sent there.

    Otherwise an update could be applied without being counted, a pull could come between the count
    and the update, or values could travel once more: the events would not describe what happened.

    Raises:
        ValueError: if not; it names the parameter and says what to do.
    """
    _Update(params, global_step, step, update, pushes).check()


class _Update:
    def __init__(self, params, global_step, step, update, pushes):
        self._params = {_handle(param): param for param in params}
        self._global_step, self._number = _handle(global_step), update.number
        self._sent = {tensor.op for push in pushes for tensor in push.sent}
        self._runs = needed([step])
        self._after = {update.number.op}  # what runs after the count, including the count
        for op in update.number.graph.get_operations():  # in order of creation: inputs first
            if op in self._runs and not self._after.isdisjoint(behind(op)):
                self._after.add(op)

    def check(self) -> None:
        self._check_count()
        for op in self._runs:
            changed = [self._params[handle] for handle in _changed(op) if handle in self._params]
            if changed:
                self._check_change(op, changed[0].op.name)

    def _check_count(self) -> None:
        for op in self._runs - {self._number.op}:
            if self._global_step in _changed(op):
                raise ValueError(
                    f"{op.name} counts the update a second time: next_update has counted it, so "
                    "leave global_step out of apply_gradients(...) or minimize(...)"
                )

    def _check_change(self, op: tf.Operation, name: str) -> None:
        if op not in self._after:
            raise ValueError(
                f"{op.name} changes {name} without waiting for the number of the update: put it "
                f"inside `{INSIDE}`"
            )
        for part in _used(op, {self._number.op, *self._sent}):
            if part in self._after and self._reads_global_step(part):
                raise ValueError(
                    f"the update of {name} reads global_step, which already counts it: use "
                    f"update.number inside `{INSIDE}`, the number of updates before this one"
                )
            if part.type in PYTHON and on_ps(part):
                raise ValueError(
                    f"{part.name} is a Python function on a ps, which does not have it: call it on "
                    "the worker, before copies.send"
                )
            if on_ps(self._number.op) and not on_ps(part):
                raise ValueError(_not_on_ps(part, name))

    def _reads_global_step(self, op: tf.Operation) -> bool:
        return op.type in READS and any(tensor.op is self._global_step for tensor in op.inputs)


def _used(op: tf.Operation, sent: Collection[tf.Operation]) -> list[tf.Operation]:
    """What `op` is computed from, itself included, up to what was sent to the ps."""
    found, to_see, seen = [], [op], {op, *sent}
    while to_see:
        found.append(to_see.pop())
        for each in behind(found[-1]):
            if each not in seen:
                seen.add(each)
                to_see.append(each)
    return found


def _handle(variable) -> tf.Operation:
    return variable.handle.op if hasattr(variable, "handle") else variable.op


def _changed(op: tf.Operation) -> list[tf.Operation]:
    """The handles of the variables that an operation changes."""
    if op.type in READS:
        return []
    # A loop, a branch or a function call lists the inputs that it only reads.
    only_read = op.node_def.attr["_read_only_resource_inputs"].list.i
    return [t.op for i, t in enumerate(op.inputs) if is_variable(t) and i not in only_read]
