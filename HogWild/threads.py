"""HogWild! as in the paper: n threads of one process update parameters in shared memory,
without locks (Niu et al. 2011, arXiv 1106.5730). `bash run.sh --threads N`

Each thread repeats this, without waiting for the others:

    g = gradient of the mean loss on a fresh mini-batch of its own shard, at the current w
    w <- w - eta g
"""

import threading

from common import cluster, copies, data, models, session  # import first: quiet start-up
import tensorflow.compat.v1 as tf

# Flags and their defaults (--help lists them all). --steps: total updates by all threads.
DEFAULTS = {"ps": 0, "steps": 2000, "learning_rate": 0.2, "threads": 2}

# 1. Who am I? There is no cluster: this is the only process.
tf.disable_eager_execution()  # use graphs and sessions; the main README says why
task = cluster.Task.from_flags("worker", DEFAULTS)
flags = task.flags

# 3. The parameters, and global_step, which counts their updates: in memory shared by all threads.
# Resource variables, TensorFlow's usual kind, would take a lock for each dense update.
with tf.variable_scope("", use_resource=False):
    params = models.create(flags)  # weights, biases, weights, ...
global_step = tf.train.get_or_create_global_step()


def replica(k):
    """The part of the graph that thread k runs."""
    # 4. This thread's shard of the data: examples k, k + n, k + 2n, ... for thread k of n.
    next_batch = data.batches(flags, worker=k, workers=flags.threads)

    # 5. The scheme: w <- w - eta g, with a gradient that may be stale, and no lock.
    pull = copies.in_place(params, global_step)  # pull.w are params, and pull.count is read first
    with tf.control_dependencies([pull.count]):
        loss, grads = models.gradients(flags, pull.w, next_batch())
    with session.next_update(global_step, flags, grads) as update:  # schedule by update.number
        optimizer = tf.train.GradientDescentOptimizer(flags.learning_rate)
        step = optimizer.apply_gradients(zip(grads, params))
    return session.Replica(step, loss, pull, update=update)


replicas = [replica(k) for k in range(flags.threads)]

# Each thread that calls run computes its own step, as far as possible.
task.config.inter_op_parallelism_threads = -1

# 6. One session for all threads; the first thread runs TensorFlow's standard hooks.
with session.training(task, None, params, replicas) as sess:
    coordinator = tf.train.Coordinator()

    # 7. The loop of thread k. The first thread to see that all --steps are done stops the others.
    def loop(k):
        with coordinator.stop_on_exception():
            while not (sess.should_stop() or coordinator.should_stop()):
                sess.run(replicas[k].step)
            coordinator.request_stop()

    threads = [threading.Thread(target=loop, args=[k]) for k in range(1, flags.threads)]
    for thread in threads:
        thread.start()
    loop(0)
    coordinator.join(threads)
