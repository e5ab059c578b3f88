"""Non-Distributed-Setup: the learning problem on its own, in one process.

The process repeats this:

    g = gradient of the mean loss on a fresh mini-batch, at w
    w <- w - eta g
"""

from common import cluster, data, models, session  # import first: quiet start-up
import tensorflow.compat.v1 as tf

# Flags and their defaults (--help lists them all). --steps: total updates.
DEFAULTS = {"workers": 1, "ps": 0, "steps": 2000, "learning_rate": 0.2}

# 1. Who am I? There is no cluster: this is the only process.
tf.disable_eager_execution()  # use graphs and sessions; the main README says why
task = cluster.Task.from_flags("worker", DEFAULTS)
flags = task.flags

# 3. The parameters, and global_step, which counts their updates.
params = models.create(flags)  # weights, biases, weights, ...
global_step = tf.train.get_or_create_global_step()

# 4. The data.
next_batch = data.batches(flags)

# 5. The scheme.
loss, grads = models.gradients(flags, params, next_batch())

# w <- w - eta g, once the gradient is ready.
# global_step counts it first (update.number: the count before), then it is applied. After --steps
# updates, sess.run(step) raises OutOfRangeError instead, which ends the loop.
with session.next_update(global_step, flags, grads) as update:
    optimizer = tf.train.GradientDescentOptimizer(flags.learning_rate)  # schedule by update.number
    step = optimizer.apply_gradients(zip(grads, params))

# 6. The monitored session, which also logs the loss and number of each step.
me = session.Replica(step, loss, update=update)  # what to run, and what to measure
with session.training(task, None, params, [me]) as sess:
    while not sess.should_stop():  # 7. The loop
        sess.run(step)  # one step: a fresh batch, its gradient, the update
