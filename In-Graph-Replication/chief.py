"""In-graph replication: one client, one graph, a replica of the network on each worker.

The process repeats this, each time in a single step of its session:

    replica k, on worker k:
        w <- w~
        g_k = gradient of the mean loss on a fresh mini-batch of its own shard, at w
    w~ <- w~ - eta / n sum_k g_k
"""

from common import cluster, copies, data, models, session  # import first: quiet start-up
import tensorflow.compat.v1 as tf

from cost import Cost  # in this folder: measures this client's work

# Flags and their defaults (--help lists them all). --steps: updates; each averages all replicas.
DEFAULTS = {
    "workers": 2,
    "ps": 1,
    "chief": 1,
    "steps": 1000,
    "learning_rate": 0.2,
    "mode": ("averaged", "threads"),
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
    """The loss and gradient of replica k, computed on worker k."""
    # 4. Replica k of n gets examples k, k + n, k + 2n, ...; the chief has the data and sends it.
    with tf.device(task.device):
        next_batch = data.batches(flags, worker=k, workers=flags.workers)
        drawn = next_batch()

    # 5. The scheme, on worker k: copy the parameters, then compute the gradient
    with tf.device(f"/job:worker/task:{k}"):
        batch = [tf.identity(part) for part in drawn]  # travels from the chief to worker k
        # beside=batch: "computing" starts once the batch has arrived too
        pull = copies.pull(params, global_step, beside=batch)
        loss, grads = models.gradients(flags, pull.w, batch)
        push = copies.send(grads, params)  # the gradients travel to the ps
    return loss, pull, push


losses, pulls, pushes = zip(*[replica(k) for k in range(flags.workers)])

# w~ <- w~ - eta / n sum_k g_k, on the ps, once the gradients of all replicas have arrived.
# global_step counts it first (update.number: the count before), then it is applied. After --steps
# updates, sess.run(step) raises OutOfRangeError instead, which ends the loop.
with session.next_update(global_step, flags, *pushes) as update:
    means = [tf.add_n(g) / flags.workers for g in zip(*[push.values for push in pushes])]
    optimizer = tf.train.GradientDescentOptimizer(flags.learning_rate)  # schedule by update.number
    step = optimizer.apply_gradients(zip(means, params))

# 6. The monitored session: it initialises w~; each step goes to every replica's events file.
replicas = [session.Replica(step, *each, update) for each in zip(losses, pulls, pushes)]
with cost, session.training(task, server, params, replicas) as sess:
    while not sess.should_stop():  # 7. The loop
        sess.run(step)  # one step: all replicas, each with a fresh batch
        cost.step()
