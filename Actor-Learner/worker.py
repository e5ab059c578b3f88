"""An actor: it plays with the newest policy and sends its episodes to the learner, chief.py.

Each actor repeats, independently of the others:

    pull   w <- the parameters of the policy pi, and how many updates they contain
    play   --episodes whole episodes:  a_t ~ pi(. | o_t),  G_t = r_t + discount G_{t+1}
    put    all (o_t, a_t, G_t) into the learner's queue, as one batch; wait while it is full
"""

import contextlib
import os
import time

from common import cluster, copies, fail, gates  # import first: quiet start-up
from common.graph import closing
from common.told import addresses
import tensorflow.compat.v1 as tf

import cartpole  # in this folder, as is shared
import shared

# 1. Who am I? The flags and their defaults are chief.py's.
tf.disable_eager_execution()  # use graphs and sessions; the main README says why
task = cluster.Task.from_flags("worker")
flags = task.flags
shared.check(flags)

# 2. This task's server. The filters: its sessions talk to the learner, not to other actors.
task.config.device_filters.extend(["/job:chief", task.device])
server = tf.train.Server(task.cluster, task.job, task.index, config=task.config)

# 3. The learner's parameters, count and queue: they already exist on the learner.
policy, _, global_step, queue = shared.declare(flags)
ready = gates.Gate("ready", "/job:chief/task:0")
left = gates.Gate(f"left-{task.index}", "/job:chief/task:0")

# 4. The data: a game, and a random generator for the moves. Each actor has its own seed (the test's
# is 0), and a new one after each restart.
restarts = int(os.environ.get("TASK_RESTARTS", 0))
game, rng = cartpole.start(flags.seed, 1 + task.index, restarts)
delay = (flags.delay or {}).get(task.index, 0)

# 5. The scheme. Pull: the policy in one transfer, and whether the queue is closed. Put: a batch;
# blocks while the queue is full.
with tf.device(task.device):
    pulled = copies.pull(policy, global_step)
    parts = {name: tf.placeholder(kind) for name, kind in shared.PARTS.items()}
pull, put = [pulled.w, pulled.count, queue.is_closed()], queue.enqueue(parts)


def connect() -> tf.Session:
    """6. A session on the learner, once its parameters are ready."""
    addresses.wait_for("chief 0", task.hosts["chief"][0], flags.timeout)
    session = closing.Session(server.target, config=task.config)
    session.closes = False  # to close it may take minutes without the learner
    ready.wait(session, "chief 0", flags.timeout)
    return session


session = None
patience = tf.RunOptions(timeout_in_ms=int(1000 * flags.timeout))
while True:  # 7. The loop
    try:
        session = session or connect()
        began = time.time()
        arrays, count, closed = session.run(pull, options=patience)
        pulled = time.time()
        if closed:  # training is over
            break
        batch = cartpole.collect(game, arrays, flags, rng)
        if delay:
            time.sleep(delay)
        times = [began, pulled - began, time.time() - pulled]
        batch |= {"actor": task.index, "pulled_at": count, "times": times}
        session.run(put, {parts[name]: value for name, value in batch.items()}, options=patience)
    except tf.errors.CancelledError:
        continue  # the queue was closed during the put: the next pull reports it
    except tf.errors.DeadlineExceededError:
        fail(f"chief 0 did not answer within {flags.timeout:g} s: see its log")
    except (tf.errors.UnavailableError, tf.errors.AbortedError):
        print(f"{task.name} lost chief 0; dropping the batch and waiting", flush=True)
        session = None

print(f"{task.name} leaves: the queue is closed", flush=True)
with contextlib.suppress(tf.errors.UnavailableError, tf.errors.AbortedError):
    left.open(session)  # the learner may exit before it answers the last actor
