"""HogWild!: n workers update shared parameters without locks (Niu et al. 2011, arXiv 1106.5730).

Each worker repeats, and waits for nobody:

    pull   w <- w~
           g = gradient of the mean loss on a fresh mini-batch of its own shard, at w
    push   w~ <- w~ - eta g
"""

from common import cluster, copies, data, models, session  # import first: quiet start-up
import tensorflow.compat.v1 as tf

# Defaults of this example's flags; --steps counts the updates of all workers together.
DEFAULTS = {"workers": 2, "ps": 1, "steps": 2000, "learning_rate": 0.2, "threads": None}

# 1. Who am I? The flags, or TF_CONFIG, say which task of which cluster.
tf.disable_eager_execution()  # graphs and sessions; the README says why
task = cluster.Task.from_flags("worker", DEFAULTS)
flags = task.flags

# 2. This task's server: the others reach this process through it, and it reaches them.
server = tf.train.Server(task.cluster, task.job, task.index, config=task.config)

# 3. The global parameters w~, and the count of their updates, live on the parameter servers.
with tf.device(tf.train.replica_device_setter(cluster=task.cluster)):
    params = models.create(flags)
    global_step = tf.train.get_or_create_global_step()

with tf.device(task.device):
    # 4. This worker's shard of the data: examples k, k + n, k + 2n, ... for worker k of n.
    next_batch = data.batches(flags, worker=task.index, workers=flags.workers)

    # 5. The scheme. Pull: w <- w~, which holds the first pulled_at updates.
    w, pulled_at = copies.pull(params, global_step)
    loss, grads = models.gradients(flags.model, w, next_batch())
    arrived = copies.push(grads, params)

# Push: w~ <- w~ - eta g, on arrival. The ps numbers the updates 0, 1, ... and stops after --steps.
optimizer = tf.train.GradientDescentOptimizer(flags.learning_rate)
with session.next_update(global_step, flags, after=arrived) as number:
    step = optimizer.apply_gradients(zip(arrived, params))

# 6. The session: TensorFlow's monitored session with its standard hooks.
with session.training(task, server, step, loss=loss, number=number, pulled_at=pulled_at) as sess:
    while not sess.should_stop():  # 7. The loop
        sess.run(step)  # the whole graph once: a fresh pull, a fresh batch
