"""Writes what a run's ps holds to its disk: `snapshots.py PID RESULTS FOLDER EVERY SHARE`.

It enters the private network of process PID, and asks the ps to save its parameters itself. So only
the request travels through the link, no worker waits for it, and nobody's step becomes slower: a
run's own checkpoints and evaluations become rare over a slow link. Snapshot k is a TensorFlow
checkpoint, `FOLDER/k`; the line `k TIME` on the screen says when it was made, in Unix seconds.

The first one is made as soon as the ps is ready, the others once `FOLDER/begun` exists: every EVERY
seconds, or after this SHARE of the time since then, if that is more. It ends with the run.
"""

import argparse
import json
import sys
import time
from pathlib import Path

from cable import enter

PS = "localhost:2222"  # in each private network


def main() -> None:
    pid, results, folder = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    begun = Path(folder, "begun")
    every, share = map(float, sys.argv[4:])
    enter(pid)  # before TensorFlow, which starts threads
    import tensorflow.compat.v1 as tf

    from common import models

    tf.disable_eager_execution()
    flags = json.loads((results / "launches.jsonl").read_text())["flags"]
    with tf.device("/job:ps/task:0/cpu:0"):  # the same names: the same variables
        shared = models.create(argparse.Namespace(**flags))
        shared.append(tf.train.get_or_create_global_step())
        saver = tf.train.Saver(shared, max_to_keep=None)
        ready = tf.reduce_all([tf.is_variable_initialized(v) for v in shared])
    try:
        with tf.Session(f"grpc://{PS}") as session:
            while not session.run(ready):
                time.sleep(0.1)  # only to look again
            first = due = time.monotonic()
            for k in range(1_000_000):
                saver.save(session, f"{folder}/{k}", write_meta_graph=False, write_state=False)
                print(k, time.time(), flush=True)
                while not begun.exists():
                    time.sleep(0.02)  # only to look again
                    first = due = time.monotonic()
                due += max(every, share * (due - first))
                time.sleep(max(0, due - time.monotonic()))
    except tf.errors.UnavailableError:
        pass  # the run has ended


if __name__ == "__main__":
    main()
