"""Dynamic-SGD: the staler an update, the smaller it gets (Jiang et al., SIGMOD 2017; the rule of
dist-keras's DynSGD).

Each worker repeats this, without waiting for the others:

    pull   w <- w~
    local  T times, each on a fresh mini-batch:  g_t = gradient at w,  w <- w - eta g_t
    push   w~ <- w~ + d / (s + 1),  with  d = w - w_pulled  and the staleness  s
"""

from common import cluster, copies, data, models, session  # import first: quiet start-up
import tensorflow.compat.v1 as tf

# Flags and their defaults (--help lists them all). --steps: total updates by all workers.
DEFAULTS = {"workers": 2, "ps": 1, "steps": 400, "window": 10, "learning_rate": 0.2}

# 1. Who am I? Flags or TF_CONFIG give this worker's index and the addresses of all tasks.
tf.disable_eager_execution()  # use graphs and sessions; the main README says why
task = cluster.Task.from_flags("worker", DEFAULTS)
flags = task.flags

# 2. This task's server: the tasks talk to each other through their servers.
server = tf.train.Server(task.cluster, task.job, task.index, config=task.config)

# 3. Parameters w~ and global_step, which counts their updates: on the ps, shared by all workers.
with tf.device(tf.train.replica_device_setter(cluster=task.cluster)):
    params = models.create(flags)  # weights, biases, weights, ...
    global_step = tf.train.get_or_create_global_step()

with tf.device(task.device):  # this worker's GPU, or its CPU
    # 4. Worker k of n gets examples k, k + n, ...; next_batch() adds ops that draw a new batch.
    next_batch = data.batches(flags, worker=task.index, workers=flags.workers)

    # 5. The scheme. Staleness: update.number - pull.count, both on the ps
    pull = copies.pull(params, global_step)  # w <- w~

    # T local steps, g_t of a fresh batch at the local w: w <- w - eta g_t
    def local_step(t, loss, w):
        loss, grads = models.gradients(flags, w, next_batch())
        w = [p - flags.learning_rate * g for p, g in zip(w, grads)]
        return t + 1, loss, w

    def more(t, *_):
        return t < flags.window

    start = 0, 0.0, pull.w
    _, loss, w = tf.while_loop(more, local_step, start, parallel_iterations=1)
    moved = [old - new for old, new in zip(pull.w, w)]  # -d = w_pulled - w
    push = copies.send(moved, params)  # the differences travel to the ps

# Push: w~ <- w~ - (-d) / (s + 1), on the ps, once -d has arrived: a learning rate of 1 / (s + 1).
# s = update.number - pull.count: the updates that others have made since the pull.
# global_step counts it first (update.number: the count before), then it is applied. After --steps
# updates, sess.run(step) raises OutOfRangeError instead, which ends the loop.
with session.next_update(global_step, flags, push) as update:
    scale = 1 / tf.cast(update.number - pull.count + 1, tf.float32)
    optimizer = tf.train.GradientDescentOptimizer(scale)
    step = optimizer.apply_gradients(zip(push.values, params))

# 6. The monitored session: worker 0 initialises w~. At the start and the end, each waits for all.
me = session.Replica(step, loss, pull, push, update)  # what to run, and what to measure
with session.training(task, server, params, [me]) as sess:
    while not sess.should_stop():  # 7. The loop
        sess.run(step)  # one step: pull, T local steps, push
