"""HogWild! as in the paper, on a sparse problem: n threads of one process update rows of a table in
shared memory, without locks (Niu et al. 2011, arXiv 1106.5730). `bash run.sh --threads N`

Each thread repeats this, without waiting for the others:

    g, h = gradients of the mean loss on a fresh mini-batch of its own shard, at the current w and E
    w <- w - eta g, and the same for the rows of E that the batch names; with Adagrad,
        G <- G + g^2 first, from 0.1, then eta / sqrt(G)
"""

import threading

from common import cluster, copies, session  # import first: quiet start-up
import tensorflow.compat.v1 as tf

import network  # in this folder, as is ratings
import ratings

# Flags and their defaults (--help lists them all). --steps: total updates by all threads.
DEFAULTS = {
    "ps": 0,
    "steps": 6000,
    "batch_size": 64,
    "learning_rate": 1.0,
    "optimizer": "adagrad",
    "model": "embeddings",  # unknown to common/: this example's only network
    "hidden": None,
    "width": 32,
    "data": "planted",
    "planted_users": 2000,
    "planted_items": 198_000,
    "planted_ratings": 1_000_000,
    "zipf": 1.1,
    "dense": False,
    "threads": 2,
    "target": None,
    "target_accuracy": None,
    "evaluate_every": None,
    "evaluate_on": 1000,
    "checkpoint_every": 1000,
}

# 1. Who am I? There is no cluster: this is the only process.
tf.disable_eager_execution()  # use graphs and sessions; the main README says why
task = cluster.Task.from_flags("worker", DEFAULTS)
flags = task.flags

# 3. The parameters, the table, and global_step, which counts their updates: in memory shared by all
# threads. Resource variables, TensorFlow's usual kind, would take a lock for each dense update.
with tf.variable_scope("", use_resource=False):
    params = network.dense(flags)
    table = network.table(flags)
global_step = tf.train.get_or_create_global_step()
optimizer = {  # one for all threads, which share Adagrad's G
    "sgd": tf.train.GradientDescentOptimizer,
    "adagrad": tf.train.AdagradOptimizer,
}[flags.optimizer](flags.learning_rate)


def replica(k):
    """The part of the graph that thread k runs."""
    # 4. This thread's shard of the data: ratings k, k + n, k + 2n, ... for thread k of n.
    ids, values = ratings.batches(flags, worker=k, workers=flags.threads)()

    # 5. The scheme, with gradients that may be stale, and no lock.
    pull = copies.in_place([*params, table], global_step)  # pull.count is read first
    with tf.control_dependencies([pull.count]):
        loss, grads = network.gradients(pull.w, ids, values)
    with session.next_update(global_step, flags, grads) as update:
        step = optimizer.apply_gradients(zip(grads, [*params, table]))
    return session.Replica(step, loss, pull, update=update)


replicas = [replica(k) for k in range(flags.threads)]

# Each thread that calls run computes its own step, as far as possible.
task.config.inter_op_parallelism_threads = -1

# 6. One session for all threads; the first thread runs TensorFlow's standard hooks.
with session.training(
    task, None, params, replicas, tables=[table],
    evaluate=network.evaluate, test=ratings.test(flags),
) as sess:  # fmt: skip
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
