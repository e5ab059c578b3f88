"""AGN: accumulated gradient normalization (Hermans et al. 2017, arXiv 1710.02368).

Each worker repeats, and waits for nobody:

    pull   w <- w~
    local  T times on a fresh mini-batch:  g_t = gradient at w,  w <- w - eta g_t
    push   w~ <- w~ - eta a,  with the mean  a = (1/T) sum g_t
"""

from common import cluster, copies, data, models, session  # import first: quiet start-up
import tensorflow.compat.v1 as tf

# Defaults of this example's flags; --steps counts the updates of all workers together.
DEFAULTS = {"workers": 2, "ps": 1, "steps": 400, "window": 10, "learning_rate": 0.2}

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
    pulled, pulled_at = copies.pull(params, global_step)

    # T local steps, each on a fresh batch at the moved w: w <- w - eta g_t, total <- total + g_t
    def local_step(t, loss, w, total):
        loss, grads = models.gradients(flags.model, w, next_batch())
        w = [p - flags.learning_rate * g for p, g in zip(w, grads)]
        total = [s + g for s, g in zip(total, grads)]
        return t + 1, loss, w, total

    def more(t, *_):
        return t < flags.window

    start = 0, 0.0, pulled, [tf.zeros_like(p) for p in pulled]
    _, loss, _, total = tf.while_loop(more, local_step, start, parallel_iterations=1)
    mean = [s / flags.window for s in total]  # a = (1/T) sum g_t
    arrived = copies.push(mean, params)

# Push: w~ <- w~ - eta a, on arrival. The ps numbers the updates 0, 1, ... and stops after --steps.
optimizer = tf.train.GradientDescentOptimizer(flags.learning_rate)
with session.next_update(global_step, flags, after=arrived) as number:
    step = optimizer.apply_gradients(zip(arrived, params))

# 6. The session: TensorFlow's monitored session with its standard hooks.
with session.training(task, server, step, loss=loss, number=number, pulled_at=pulled_at) as sess:
    while not sess.should_stop():  # 7. The loop
        sess.run(step)  # the whole graph once: a fresh pull, a fresh batch
