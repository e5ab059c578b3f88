"""Non-Distributed-Setup: the learning problem alone, in one process.

Again and again:

    g = gradient of the mean loss on a fresh mini-batch, at w
    w <- w - eta g
"""

from common import cluster, data, models, session  # ours; first: quietens TensorFlow
import tensorflow.compat.v1 as tf

# Of the flags; "steps" counts the updates of all workers together.
DEFAULTS = {"workers": 1, "ps": 0, "steps": 2000, "learning_rate": 0.2}

# 1. Who am I? Without a cluster: the only one.
tf.disable_eager_execution()  # graphs and sessions; the README says why
task = cluster.Task.from_flags("worker", DEFAULTS)
flags = task.flags

# 3. The parameters, and the count of their updates.
params = models.create(flags)
global_step = tf.train.get_or_create_global_step()

# 4. The data.
next_batch = data.batches(flags)

# 5. The scheme: w <- w - eta g
pulled_at = session.updates_so_far(global_step)
loss, grads = models.gradients(flags.model, params, next_batch())

optimizer = tf.train.GradientDescentOptimizer(flags.learning_rate)
# Count first: next_update takes the next number of global_step and ends the session after --steps,
# so that no update too many is applied. Hence no global_step in apply_gradients.
number = session.next_update(global_step, flags, after=[pulled_at, *grads])
with tf.control_dependencies([number]):
    step = optimizer.apply_gradients(zip(grads, params))

# 6. The session, with TensorFlow's standard hooks.
measured = loss, number, pulled_at, [grads]
with session.training(task, None, params, step, measured) as sess:
    # 7. The loop: every step computes the whole graph anew, with a fresh batch; while it takes
    # less than 10 ms, a run makes several of them (common/chain.py).
    while not sess.should_stop():
        sess.run(step)
