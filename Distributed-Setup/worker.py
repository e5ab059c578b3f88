"""Distributed-Setup: the parameters live on a parameter server, and one worker trains them.

The worker repeats this:

    pull   w <- w~                                                              # NEW:
           g = gradient of the mean loss on a fresh mini-batch, at w
    push   w~ <- w~ - eta g                                                     # NEW:

Distribution adds or changes the lines marked NEW.
"""

from common import cluster, copies, data, models, session  # NEW: copies of global parameters
import tensorflow.compat.v1 as tf

# Flags and their defaults (--help lists them all). --steps: total updates by all workers.
DEFAULTS = {"workers": 1, "ps": 1, "steps": 2000, "learning_rate": 0.2}  # NEW: one ps

# 1. Who am I? Flags or TF_CONFIG give this worker's index and the addresses of all tasks.
tf.disable_eager_execution()  # use graphs and sessions; the main README says why
task = cluster.Task.from_flags("worker", DEFAULTS)
flags = task.flags

# 2. This task's server: the tasks talk to each other through their servers.
server = tf.train.Server(task.cluster, task.job, task.index, config=task.config)  # NEW: it has one

# 3. Parameters w~ and global_step, which counts their updates: on the ps, shared by all workers.
with tf.device(tf.train.replica_device_setter(cluster=task.cluster)):  # NEW: on the ps
    params = models.create(flags)  # weights, biases, weights, ...
    global_step = tf.train.get_or_create_global_step()

with tf.device(task.device):  # NEW: computed on this worker
    # 4. The data.
    next_batch = data.batches(flags)

    # 5. The scheme. Staleness: update.number - pull.count, both on the ps
    pull = copies.pull(params, global_step)  # NEW: w <- w~, one transfer from each ps
    loss, grads = models.gradients(flags, pull.w, next_batch())  # NEW: at w
    push = copies.send(grads, params)  # NEW: the gradients travel, one transfer to each ps

# Push: w~ <- w~ - eta g, on the ps, once the gradients have arrived.
# global_step counts it first (update.number: the count before), then it is applied. After --steps
# updates, sess.run(step) raises OutOfRangeError instead, which ends the loop.
with session.next_update(global_step, flags, push) as update:  # NEW: after arrival
    optimizer = tf.train.GradientDescentOptimizer(flags.learning_rate)  # schedule by update.number
    step = optimizer.apply_gradients(zip(push.values, params))  # NEW: on each parameter's ps

# 6. The monitored session: worker 0 initialises w~. At the start and the end, each waits for all.
me = session.Replica(step, loss, pull, push, update)  # NEW: pull and push are measured, too
with session.training(task, server, params, [me]) as sess:  # NEW: on this server
    while not sess.should_stop():  # 7. The loop
        sess.run(step)  # one step: pull and fresh batch, in any order; gradient; push
