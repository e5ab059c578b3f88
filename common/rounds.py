"""The chief's second thread in the synchronous schemes: it makes one update after the other."""

import json
import threading
import time
from pathlib import Path

import tensorflow.compat.v1 as tf

from common.chain import Chain


class Rounds(tf.train.SessionRunHook):
    """Runs an update again and again beside the training loop, until `--steps` of them are made.

    What `SyncReplicasOptimizer` does with a queue runner; this one notes in `updates.jsonl` whose
    gradients each update holds, and ends with the last update.
    """

    def __init__(
        self,
        task,
        number: tf.Tensor,
        who: tf.Tensor,
        release: tf.Tensor,
        close: tf.Operation,
    ):
        """
        Args:
            task: who this process is; only the chief starts the thread.
            number: how many updates came before this one, int64 scalar.
            who: the workers whose gradients it holds, one bool for each worker.
            release: waits for the gradients, applies them, and lets the workers go on.
            close: lets every worker that waits, or will wait, end.
        """
        self.close = close
        self._task = task
        self._chain = Chain(release.op, [[number, who]], "rounds")
        self._global_step = tf.train.get_global_step().read_value()

    def after_create_session(self, session, coord):
        """Also after a recovery, when the thread of the lost session has ended."""
        if self._task.is_chief:
            threading.Thread(target=self._run, args=(session, coord), daemon=True).start()

    def _run(self, session, coord):
        steps, path = self._task.flags.steps, Path(self._task.flags.results, "updates.jsonl")
        try:
            done = session.run(self._global_step)
            self._chain.prepare(session)
            with open(path, "a", encoding="utf-8") as file:
                while done < steps and not coord.should_stop():
                    for ((number, *who),) in self._chain.run(at_most=steps - done):
                        done = int(number) + 1
                        workers = [k for k, there in enumerate(who) if there]
                        line = {"time": time.time(), "global_step": done, "workers": workers}
                        file.write(json.dumps(line) + "\n")
            session.run(self.close)
        except (tf.errors.UnavailableError, tf.errors.AbortedError):
            pass  # a ps is lost: the training loop notices it, too, and recovers the session
        except (tf.errors.CancelledError, RuntimeError):
            pass  # the session was closed: the run ends before its last step
        except Exception as error:  # a fault of this graph ends the training loop, too
            coord.request_stop(error)
