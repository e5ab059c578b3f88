"""What one replica does in a step, and how it is measured."""

import math
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from common import datasets
from common.graph import clock
from common.graph.rows import Rows
from common.record import closing
from common.records import Pull, Push, Token, Update
from common.training.board import Board


class Replica(NamedTuple):
    """What one replica of the model does in a step. A replica is a worker process, a thread, a
    tower, or a worker that a chief drives.

    Attributes:
        step: the operation that the loop runs.
        loss: that of the step's (last) mini-batch, a scalar.
        pull: what it pulled; None if nothing says how many updates its parameters contain: then
            the events say all.
        push: what it sent; None if nothing travels.
        update: the update that its push made or, in a synchronous scheme, the token of the round
            that it took part in.
        pushes_first: whether it sends its push before it computes, as the elastic schemes do.
        token: what it waited for before it pulled, if it also makes its own update.
        batches: how many mini-batches a step has taken, a scalar where it computes; None:
            `--window`, or one.
        more: what else its events say: name -> scalars, each on any device; the event has their
            sum.
    """

    step: tf.Operation
    loss: tf.Tensor
    pull: Pull | None = None
    push: Push | None = None
    update: Update | Token | None = None
    pushes_first: bool = False
    token: Token | None = None
    batches: tf.Tensor | None = None
    more: Mapping[str, Sequence[tf.Tensor]] = MappingProxyType({})


class Here(NamedTuple):
    """What a step measures where it computes. Times are by the worker's clock."""

    loss: float
    batches: float
    asked_at: float | None
    arrived_at: float | None
    computed_at: float | None


class There(NamedTuple):
    """What a step measures on the ps that counts. Times are by the clock of the ps."""

    number: float
    count: float
    read_at: float | None
    counted_at: float | None
    asked_at: float | None


class Call(NamedTuple):
    """A call of the session, by the worker's clock; `ended` is None if it was aborted."""

    began: float
    ended: float | None


class Measured:
    """One replica: the rows of its steps, its events file, and its curves in TensorBoard."""

    def __init__(self, task, worker: int, replica: Replica, shards: int):
        """`shards`: into how many the examples are divided."""
        pull, push, update = replica.pull, replica.push, replica.update
        computed_at = push.computed_at if push else None
        name, here = f"worker-{worker}", replica.loss.device if task.hosts else ""
        if replica.pushes_first:
            with tf.device(here):
                computed_at = clock.now([replica.loss])
        asked_at, arrived_at = (pull.asked_at, pull.arrived_at) if pull else (None, None)
        # In this process, the session's calls are timed by the same clock.
        self._own_clock = here in ("", task.device)
        token = update if isinstance(update, Token) else replica.token
        there = There(
            number=update.number,
            count=pull.count if pull else update.number,
            read_at=pull.read_at if pull else None,
            counted_at=update.counted_at if isinstance(update, Update) else None,
            asked_at=token.asked_at if token else None,
        )
        batches = replica.batches
        if batches is None:
            batches = getattr(task.flags, "window", 1)
        own = Here(replica.loss, batches, asked_at, arrived_at, computed_at)
        self.rows = [
            Rows(own, here, f"{name}-here"),
            Rows(there, update.number.device, f"{name}-there"),
        ]
        more: dict[str, list] = {}  # device -> what is measured there: a transfer would cost more
        for key, scalars in replica.more.items():
            for scalar in scalars:
                more.setdefault(scalar.device, []).append((key, scalar))
        self._more = [[key for key, _ in found] for found in more.values()]
        for k, (place, found) in enumerate(more.items()):
            self.rows.append(Rows([scalar for _, scalar in found], place, f"{name}-more-{k}"))
        self.number, self.worker = update.number.op, worker
        self.file = closing.open_events(task.flags, worker)
        self.board = Board(task.flags, worker)
        self.batch = task.flags.batch_size or datasets.shard(task.flags, worker, shards)
        self.local_step = 0
        self.counted_at: float | None = None  # of the last update

    def events(
        self, calls: Sequence[Call], count: int, rows: Sequence[list[list[float]]]
    ) -> Iterator[dict]:
        """The events of the steps that `calls`, of `count` steps each, have made. `rows`: those
        that these steps have left, of each of `self.rows`."""
        here, there, *more = rows
        computed = _by_call([Here(*row[:2], *_times(row[2:])) for row in here], calls, count)
        counted = _by_call([There(*row[:2], *_times(row[2:])) for row in there], calls, count)
        others = [_by_call(each, calls, count) for each in more]
        for call, *parts in zip(calls, computed, counted, *others, strict=True):
            for k, event in enumerate(self._events(count, call, *parts[:2])):
                yield event | self._sums([found[k] for found in parts[2:]])

    def _sums(self, rows: Sequence[list[float]]) -> dict[str, float]:
        """What else an event says."""
        found: dict[str, float] = {}
        for keys, row in zip(self._more, rows, strict=True):
            for key, value in zip(keys, row, strict=True):
                found[key] = found.get(key, 0) + value
        return found

    def _events(self, count: int, call: Call, computed: list[Here], counted: list[There]):
        """The events of the steps of one call. Each duration is the difference of two readings of
        one clock: a replica's clock may not be that of this process, or of the ps."""
        began, before = call.began, None
        for k, (here, there) in enumerate(zip(computed, counted)):
            if before is None:
                before = here.asked_at
                if before is None or self._own_clock:
                    before = call.began
            # Without anything that travels, the ps is this process.
            computed_at = _known(here.computed_at, there.counted_at)
            # Inside a call, nobody sees when a push ends: it counts as the next step's pull.
            ended = began + computed_at - before
            if k == count - 1 and call.ended is not None:
                ended = call.ended
            waited = 0.0  # for a token
            if there.asked_at is not None:
                waited = there.read_at - there.asked_at
            whole = max(0.0, ended - began - waited)
            pull = 0.0
            if here.arrived_at is not None:
                pull = min(whole, max(0.0, here.arrived_at - before - waited))
            compute = whole - pull
            if here.computed_at is not None:
                compute = min(compute, here.computed_at - (here.arrived_at or before))
            yield self._event(here, there, ended, pull, compute, whole - pull - compute)
            began, before = ended, computed_at

    def _event(
        self, here: Here, there: There, ended: float, pull: float, compute: float, push: float
    ) -> dict:
        gap = out = None
        if there.read_at is not None and self.counted_at is not None:
            gap = max(there.read_at - self.counted_at, 0.0)
        if there.read_at is not None and there.counted_at is not None:
            out = there.counted_at - there.read_at
        self.counted_at = there.counted_at
        self.local_step += int(here.batches)
        return {
            "time": _rounded(ended),
            "local_step": self.local_step,
            "global_step": int(there.number) + 1,
            "loss": here.loss,
            "staleness": max(0, int(there.number) - int(there.count)),
            "pulled_at": int(there.count),
            "examples": self.batch * int(here.batches),
            "gap": _rounded(gap),
            "out": _rounded(out),
            "pull": _rounded(pull),
            "compute": _rounded(compute),
            "push": _rounded(push),
            "counted": _rounded(there.counted_at),
        }


def _by_call(rows: list, calls: Sequence[Call], count: int) -> list[list]:
    """The rows that each call has left: `count` if it came back. An aborted one has left what then
    remains: some of them, all or none."""
    surplus = len(rows) - count * sum(call.ended is not None for call in calls)
    found, at = [], 0
    for call in calls:
        size = count if call.ended is not None else min(count, max(0, surplus))
        surplus -= size if call.ended is None else 0
        found.append(rows[at : at + size])
        at += size
    return found


def _times(row: Sequence[float]) -> list[float | None]:
    """None for what was not measured."""
    return [None if math.isnan(time) else time for time in row]


def _known(*times: float | None) -> float:
    """The first time that was measured."""
    return next(time for time in times if time is not None)


def _rounded(seconds: float | None) -> float | None:
    """Rounded to microseconds."""
    return None if seconds is None else round(seconds, 6)
