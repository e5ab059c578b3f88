"""TensorFlow aborts a call now and then although no task is lost.

About once in 40,000 calls a task refuses its part of a step: "The same RunGraph (Worker) request
was received twice". The requests have random numbers, and a task remembers the last 100,000. But
each call has a new thread, whose random numbers begin with a seed of only 32 bits. The error is
that of a lost ps, `AbortedError`, or a `CancelledError` that has this text. But all tasks are
alive, and the session can be used as before.

If a worker refuses its own part before the ps has its part, nobody tells the ps, which waits
forever for what the worker never sends. A session hands out the parts in the reverse of the order
in which their tasks first appear in the graph. So `Task.first` is the graph's first operation, and
part of each call that sends something to a ps: then a worker's own part is the last to be handed
out, and its ps is told. (If TensorFlow optimises the graph, which `Task.config` turns off, the
order may be another.) Very rarely the ps refuses its part before the worker has its own, which then
waits forever. `watch` ends such calls.
"""

import os
import re
import stat
import threading
from collections.abc import Callable, Iterator

import tensorflow.compat.v1 as tf

from common.graph import closing

TEXT = "request was received twice"
TRIES = 5  # of a call that may be repeated
EVERY = 5.0  # seconds between two looks at the log
# What TensorFlow writes to the log after two minutes: the step, and the tasks that still wait.
BLOCKED = re.compile(
    rf"RunStep still blocked after [^\n]*\n?[^\n]*{TEXT}[^\n]* step_id: (\d+)[^\n]*\n"
    r"((?:[^\n]*No response from RunGraph call to worker: [^\n]*\n)+)"
)
WAITS = re.compile(r"/job:(\w+)/replica:0/task:(\d+)")


class CallAborted(Exception):
    """A call was aborted, and no task is lost. All, a part or nothing of it was carried out."""


def is_abort(error: tf.errors.OpError) -> bool:
    kinds = tf.errors.AbortedError, tf.errors.CancelledError
    return isinstance(error, kinds) and TEXT in str(error)


class Connection(closing.Session):
    """A session that recognises such an abort.

    A call is repeated, as TensorFlow's monitored session does; but a step, which must not be taken
    twice, raises `CallAborted`.

    Attributes:
        steps: operations that a call must not repeat.
    """

    def __init__(
        self,
        target: str,
        config: tf.ConfigProto,
        graph: tf.Graph | None = None,
        first: tf.Operation | None = None,
    ):
        """`first`: `Task.first`, which each call that feeds values runs, too: its worker sends
        these to the ps."""
        super().__init__(target, graph, config)
        self._first = [] if first is None else first
        self.steps: set[tf.Operation] = set()

    def run(self, fetches, feed_dict=None, options=None, run_metadata=None):
        first = self._first if feed_dict else []

        def call():
            found = super(Connection, self).run([fetches, first], feed_dict, options, run_metadata)
            return found[0]

        return _called(call, self._tries(fetches))

    def make_callable(self, fetches, feed_list=None, accept_options=False):
        call = super().make_callable(fetches, feed_list, accept_options)
        tries = self._tries(fetches)
        return lambda *args: _called(lambda: call(*args), tries)

    def _tries(self, fetches) -> int:
        return TRIES if self.steps.isdisjoint(_operations(fetches)) else 1


def _operations(fetches) -> Iterator[tf.Operation]:
    """The operations in a structure of fetches. (`tf.nest` cannot sort a dictionary of hooks.)"""
    if isinstance(fetches, tf.Operation):
        yield fetches
    elif isinstance(fetches, dict):
        yield from _operations(list(fetches.values()))
    elif isinstance(fetches, (list, tuple)):
        for part in fetches:
            yield from _operations(part)


def _called(call: Callable, tries: int):
    for k in range(tries):
        try:
            return call()
        except (tf.errors.AbortedError, tf.errors.CancelledError) as error:
            if not is_abort(error):
                raise
            if k == tries - 1:
                raise CallAborted(error.message) from error
    raise AssertionError("unreachable: the last try returns or raises")


def watch(hosts: dict[str, list[str]]) -> None:
    """Ends steps of this process that TensorFlow has aborted, but that wait forever: the tasks
    that wait are told to drop them. Then the call raises the error of the abort.

    Only TensorFlow's log has the number of such a step, so this does nothing unless stderr is a
    file, as it is for all tasks that `run.sh` starts.
    """
    if stat.S_ISREG(os.fstat(2).st_mode):
        threading.Thread(target=_watch, args=(hosts,), daemon=True).start()


def _watch(hosts: dict[str, list[str]]) -> None:
    with open("/dev/fd/2", "rb") as log:
        log.seek(0, os.SEEK_END)
        text, pause = "", threading.Event()
        while not pause.wait(EVERY):
            text = (text + log.read().decode(errors="replace"))[-100_000:]
            for blocked in BLOCKED.finditer(text):
                for job, index in WAITS.findall(blocked[2]):
                    _drop(hosts[job][int(index)], int(blocked[1]))
            text = text[max((found.end() for found in BLOCKED.finditer(text)), default=0) :]


def _drop(address: str, step: int) -> None:
    """Tells a task to drop a step: `CleanupGraphRequest` in TensorFlow's `worker.proto`."""
    # Imported here, since that takes 0.1 s, and few runs need it.
    import grpc

    request = bytearray([1 << 3])  # field 1, a number: seven bits in each byte, the lowest first
    while step > 127:
        request.append(step & 127 | 128)
        step >>= 7
    request.append(step)
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary("/tensorflow.WorkerService/CleanupGraph")
        try:
            call(bytes(request), timeout=10)
        except grpc.RpcError as error:  # it is lost: the step learns that, too
            print(f"cannot reach {address}: {error}", flush=True)
