"""Distributed-Setup: the parameters live on a parameter server, and one worker trains them.

Again and again:

    pull   w <- w~                                                              # NEW:
           g = gradient of the mean loss on a fresh mini-batch, at w
    push   w~ <- w~ - eta g                                                     # NEW:

Each line marked NEW is there, or is as it is, because of the distribution.
"""

from common import cluster, data, models, session  # ours; first: quietens TensorFlow
from common import copies  # NEW: local copies of global parameters
import tensorflow.compat.v1 as tf

# Of the flags; "steps" counts the updates of all workers together.
DEFAULTS = {"workers": 1, "ps": 1, "steps": 2000, "learning_rate": 0.2}  # NEW: one ps

# 1. Who am I? The flags, or TF_CONFIG, say which task of which cluster.
tf.disable_eager_execution()  # graphs and sessions; the README says why
task = cluster.Task.from_flags("worker", DEFAULTS)
flags = task.flags

# 2. This task's server: the others reach this process through it, and it reaches them.
server = tf.train.Server(task.cluster, task.job, task.index, config=task.config)  # NEW: mine

# 3. The global parameters w~, and the count of their updates, live on the parameter servers.
on_ps = tf.train.replica_device_setter(cluster=task.cluster)  # NEW: variables go to the ps in turn
with tf.device(on_ps):  # NEW: without it they would be this worker's own
    params = models.create(flags)
    global_step = tf.train.get_or_create_global_step()

with tf.device(task.device):  # NEW: this worker computes
    # 4. The data.
    next_batch = data.batches(flags)

    # 5. The scheme. Pull: w <- w~
    pulled_at = session.updates_so_far(global_step)  # to measure the staleness
    w = copies.pull(params, after=pulled_at)  # NEW: one transfer from each ps
    loss, grads = models.gradients(flags.model, w, next_batch())  # NEW: at w
    pushed = copies.push(grads, params)  # NEW: one transfer to each ps; applied below

# Push: w~ <- w~ - eta g, computed by the ps on which each parameter lives.
optimizer = tf.train.GradientDescentOptimizer(flags.learning_rate, use_locking=True)  # NEW: locked
# Count first: next_update takes the next number of global_step and ends the session after --steps,
# so that no update too many is applied. Hence no global_step in apply_gradients.
number = session.next_update(global_step, flags, after=[pulled_at, *pushed])  # NEW: arrived
with tf.control_dependencies([number]):
    step = optimizer.apply_gradients(zip(pushed, params))  # NEW: what has arrived

# 6. The session, with TensorFlow's standard hooks.
measured = loss, number, pulled_at, (w, grads)  # NEW: when it was pulled
with session.training(task, server, params, step, measured) as sess:  # NEW:
    # 7. The loop: every step computes the whole graph anew, with a fresh batch and a fresh pull;
    # while it takes less than 10 ms, a run makes several of them (common/chain.py).
    while not sess.should_stop():
        sess.run(step)
