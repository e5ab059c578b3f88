"""DOWNPOUR: Adagrad on the server and in the local steps (DistBelief, Dean et al. 2012).

Each worker repeats this, without waiting for the others:

    pull   w <- w~
    local  T times, each on a fresh mini-batch:  g_t = gradient at w,
           H <- H + g_t^2,  w <- w - eta g_t / sqrt(H);  H is kept from window to window
    push   G <- G + a^2,  w~ <- w~ - eta a / sqrt(G),  with the sum  a = sum g_t

Section 4.1 and Algorithm 1, with n_fetch = n_push = T and adaptive local steps.
"""

from common import cluster, copies, data, models, session  # import first: quiet start-up
import tensorflow.compat.v1 as tf

# Flags and their defaults (--help lists them all). --steps: total updates by all workers.
DEFAULTS = {"workers": 2, "ps": 1, "steps": 400, "window": 10, "learning_rate": 0.05}

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

    # T local steps, g_t of a fresh batch at the local w, with this worker's own accumulator H:
    # H <- H + g_t^2, w <- w - eta g_t / sqrt(H), total <- total + g_t
    own = copies.local(params, 0.1)

    def local_step(t, loss, w, total, h):
        loss, grads = models.gradients(flags, w, next_batch())
        h = [a + g * g for a, g in zip(h, grads)]
        w = [p - flags.learning_rate * g / tf.sqrt(a) for p, g, a in zip(w, grads, h)]
        total = [s + g for s, g in zip(total, grads)]
        return t + 1, loss, w, total, h

    def more(t, *_):
        return t < flags.window

    start = 0, 0.0, pull.w, [tf.zeros_like(p) for p in pull.w], [a.read_value() for a in own]
    _, loss, _, total, h = tf.while_loop(more, local_step, start, parallel_iterations=1)
    keep = [a.assign(value) for a, value in zip(own, h)]
    push = copies.send(total, params)  # the sums travel to the ps: a = sum g_t

# Push: G <- G + a^2, w~ <- w~ - eta a / sqrt(G), on the ps, once the sums have arrived.
# global_step counts it first (update.number: the count before), then it is applied. After --steps
# updates, sess.run(step) raises OutOfRangeError instead, which ends the loop.
with session.next_update(global_step, flags, push) as update:  # schedule by update.number
    optimizer = tf.train.AdagradOptimizer(flags.learning_rate, initial_accumulator_value=0.1)
    applied = optimizer.apply_gradients(zip(push.values, params))
step = tf.group(applied, *keep)

# 6. The monitored session: worker 0 initialises w~. At the start and the end, each waits for all.
me = session.Replica(step, loss, pull, push, update)  # what to run, and what to measure
with session.training(task, server, params, [me]) as sess:
    while not sess.should_stop():  # 7. The loop
        sess.run(step)  # one step: pull, T local steps, push
