"""In-graph replication, asynchronous: one client, one graph, and a client thread for each replica.

Start it with `bash run.sh --mode threads`. Each thread repeats this, without waiting for the
others:

    pull   w <- w~, on worker k
           g = gradient of the mean loss on a fresh mini-batch of its own shard, at w, on worker k
    push   w~ <- w~ - eta g
"""

import threading

from common import cluster, copies, data, models, session  # import first: quiet start-up
import tensorflow.compat.v1 as tf

from cost import Cost  # in this folder: measures this client's work

# Flags and their defaults (--help lists them all). --steps: total updates by all replicas.
DEFAULTS = {
    "workers": 2,
    "ps": 1,
    "chief": 1,
    "steps": 1000,
    "learning_rate": 0.2,
    "mode": ("threads",),
}

# 1. Who am I? Flags or TF_CONFIG give the addresses of all tasks.
tf.disable_eager_execution()  # use graphs and sessions; the main README says why
task = cluster.Task.from_flags("chief", DEFAULTS)
flags = task.flags

# 2. This task's server: the tasks talk to each other through their servers.
server = tf.train.Server(task.cluster, task.job, task.index, config=task.config)
cost = Cost(task)

# 3. Parameters w~ and global_step, which counts their updates: on the ps, shared by all replicas.
with tf.device(tf.train.replica_device_setter(cluster=task.cluster)):
    params = models.create(flags)  # weights, biases, weights, ...
    global_step = tf.train.get_or_create_global_step()


def replica(k):
    """The part of the graph that thread k runs."""
    # 4. Replica k of n gets examples k, k + n, k + 2n, ...; the chief has the data and sends it.
    with tf.device(task.device):
        next_batch = data.batches(flags, worker=k, workers=flags.workers)
        drawn = next_batch()

    # 5. The scheme, on worker k. Pull w <- w~, then compute the gradient
    with tf.device(f"/job:worker/task:{k}"):
        batch = [tf.identity(part) for part in drawn]  # travels from the chief to worker k
        # beside=batch: "computing" starts once the batch has arrived too
        pull = copies.pull(params, global_step, beside=batch)
        loss, grads = models.gradients(flags, pull.w, batch)
        push = copies.send(grads, params)  # the gradients travel to the ps

    # Push: w~ <- w~ - eta g, on the ps, once the gradients have arrived.
    with session.next_update(global_step, flags, push) as update:  # schedule by update.number
        optimizer = tf.train.GradientDescentOptimizer(flags.learning_rate)
        step = optimizer.apply_gradients(zip(push.values, params))
    return session.Replica(step, loss, pull, push, update)


replicas = [replica(k) for k in range(flags.workers)]

# 6. One session for all threads; the first thread runs TensorFlow's standard hooks.
with cost, session.training(task, server, params, replicas) as sess:
    coordinator = tf.train.Coordinator()

    # 7. The loop of thread k. The first thread to see that all --steps are done stops the others.
    def loop(k):
        with coordinator.stop_on_exception():
            while not (sess.should_stop() or coordinator.should_stop()):
                sess.run(replicas[k].step)
                cost.step()
            coordinator.request_stop()

    threads = [threading.Thread(target=loop, args=[k]) for k in range(1, flags.workers)]
    for thread in threads:
        thread.start()
    loop(0)
    coordinator.join(threads)
