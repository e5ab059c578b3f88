"""TensorFlow aborts a call now and then although no task is lost.

About once in 40,000 to 90,000 calls a ps refuses the request: "The same RunGraph (Worker) request
was received twice". The error is that of a lost ps, `AbortedError`, or a `CancelledError` that has
this text. But the ps is alive, and the session can be used as before.
"""

from collections.abc import Callable, Iterator

import tensorflow.compat.v1 as tf

TEXT = "request was received twice"
TRIES = 5  # of a call that may be repeated


class CallAborted(Exception):
    """A call was aborted, and no task is lost. All, a part or nothing of it was carried out."""


def is_abort(error: tf.errors.OpError) -> bool:
    kinds = tf.errors.AbortedError, tf.errors.CancelledError
    return isinstance(error, kinds) and TEXT in str(error)


class Connection(tf.Session):
    """A session that recognises such an abort.

    A call is repeated, as TensorFlow's monitored session does; but a step, which must not be taken
    twice, raises `CallAborted`.

    Attributes:
        steps: operations that a call must not repeat.
    """

    def __init__(self, target: str, config: tf.ConfigProto):
        super().__init__(target, config=config)
        self.steps: set[tf.Operation] = set()

    def run(self, fetches, feed_dict=None, options=None, run_metadata=None):
        def call():
            return super(Connection, self).run(fetches, feed_dict, options, run_metadata)

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
