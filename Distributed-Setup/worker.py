"""Distributed-Setup: the parameters live on a parameter server, and one worker trains them.

The worker repeats:

    pull   w <- w~                                                              # NEW:
           g = gradient of the mean loss on a fresh mini-batch, at w
    push   w~ <- w~ - eta g                                                     # NEW:

Each line marked NEW is there, or is as it is, because of the distribution.
"""

from common import cluster, copies, data, models, session  # NEW: copies of global parameters
import tensorflow.compat.v1 as tf

# Defaults of this example's flags; --steps counts the updates of all workers together.
DEFAULTS = {"workers": 1, "ps": 1, "steps": 2000, "learning_rate": 0.2}  # NEW: one ps

# 1. Who am I? The flags, or TF_CONFIG, say which task of which cluster.
tf.disable_eager_execution()  # graphs and sessions; the README says why
task = cluster.Task.from_flags("worker", DEFAULTS)
flags = task.flags

# 2. This task's server: the others reach this process through it, and it reaches them.
server = tf.train.Server(task.cluster, task.job, task.index, config=task.config)  # NEW: mine

# 3. The global parameters w~, and the count of their updates, live on the parameter servers.
with tf.device(tf.train.replica_device_setter(cluster=task.cluster)):  # NEW: not my own
    params = models.create(flags)
    global_step = tf.train.get_or_create_global_step()

with tf.device(task.device):  # NEW: this worker computes
    # 4. The data.
    next_batch = data.batches(flags)

    # 5. The scheme. Pull: w <- w~, which holds the first pulled_at updates.
    w, pulled_at = copies.pull(params, global_step)  # NEW: one transfer from each ps
    loss, grads = models.gradients(flags.model, w, next_batch())  # NEW: at w
    arrived = copies.push(grads, params)  # NEW: one transfer to each ps

# Push: w~ <- w~ - eta g, on arrival. The ps numbers the updates 0, 1, ... and stops after --steps.
optimizer = tf.train.GradientDescentOptimizer(flags.learning_rate)
with session.next_update(global_step, flags, after=arrived) as number:  # NEW: after they arrived
    step = optimizer.apply_gradients(zip(arrived, params))  # NEW: on the ps of each parameter

# 6. The session: TensorFlow's monitored session with its standard hooks.
with session.training(  # NEW: with a server, and with what was pulled
    task, server, params, step, loss=loss, number=number, pulled_at=pulled_at  # NEW:
) as sess:  # NEW: # fmt: skip
    while not sess.should_stop():  # 7. The loop
        sess.run(step)  # the whole graph once: a fresh pull, a fresh batch
