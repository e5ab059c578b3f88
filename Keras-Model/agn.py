"""A Keras network, trained by AGN: `--scheme agn`.

w~ are its parameters, s~ its state: the moving statistics of batch normalisation. Each worker
repeats this, without waiting for the others:

    pull   w <- w~,  s_0 <- s~
    local  T times, each on a fresh mini-batch:  g_t = gradient at w, with dropout,
           w <- w - eta g_t,  s_t = the state after that batch, from s_(t-1)
    push   w~ <- w~ - eta a,  with the mean  a = (1/T) sum g_t,  s~ <- s~ + (1/T) (s_T - s_0)
"""

import functools

from common import cluster, copies, data, session  # import first: quiet start-up
import tensorflow.compat.v1 as tf

import network  # in this folder

# Flags and their defaults (--help lists them all). --steps: total updates by all workers.
DEFAULTS = {
    "workers": 2, "ps": 1, "steps": 600, "window": 10, "learning_rate": 0.1,
    "model": "keras_net", "bn_momentum": 0.9, "dropout": 0.2,  # network.py
    "scheme": ("agn",),
}  # fmt: skip

# 1. Who am I? Flags or TF_CONFIG give this worker's index and the addresses of all tasks.
tf.disable_eager_execution()  # use graphs and sessions; the main README says why
task = cluster.Task.from_flags("worker", DEFAULTS)
flags = task.flags

# 2. This task's server: the tasks talk to each other through their servers.
server = tf.train.Server(task.cluster, task.job, task.index, config=task.config)

# 3. w~, s~ and global_step, which counts their updates: on the ps, shared by all workers.
with tf.device(tf.train.replica_device_setter(cluster=task.cluster)):
    net = network.create(flags)
    params, state = network.variables(net)  # of w~ and of s~
    global_step = tf.train.get_or_create_global_step()

with tf.device(task.device):  # this worker's GPU, or its CPU
    # 4. Worker k of n gets examples k, k + n, ...; next_batch() adds ops that draw a new batch.
    next_batch = data.batches(flags, worker=task.index, workers=flags.workers)

    # 5. The scheme. Staleness: update.number - pull.count, both on the ps
    pull = copies.pull([*params, *state], global_step)  # w <- w~, s <- s~
    w, first = network.split(net, pull.w)  # first: s_0

    # T local steps, g_t of a fresh batch at the local w: w <- w - eta g_t, total <- total + g_t
    def local_step(t, loss, w, s, total):
        loss, grads, s = network.gradients(net, w, s, next_batch())
        w = [p - flags.learning_rate * g for p, g in zip(w, grads)]
        total = [a + g for a, g in zip(total, grads)]
        return t + 1, loss, w, s, total

    def more(t, *_):
        return t < flags.window

    start = 0, 0.0, w, first, [tf.zeros_like(p) for p in w]
    # The loss is that of the last batch; the local w is dropped.
    _, loss, _, last, total = tf.while_loop(more, local_step, start, parallel_iterations=1)
    mean = [a / flags.window for a in total]  # a = (1/T) sum g_t
    change = [(b - a) / flags.window for a, b in zip(first, last)]  # (1/T) (s_T - s_0)
    push = copies.send([*mean, *change], [*params, *state])  # the means travel to the ps
mean, change = network.split(net, push.values)

# Push: w~ <- w~ - eta a, s~ <- s~ + (1/T) (s_T - s_0), on the ps, once the means have arrived.
# global_step counts it first (update.number: the count before), then it is applied. After --steps
# updates, sess.run(step) raises OutOfRangeError instead, which ends the loop.
with session.next_update(global_step, flags, push) as update:
    optimizer = tf.train.GradientDescentOptimizer(flags.learning_rate)  # schedule by update.number
    trained = optimizer.apply_gradients(zip(mean, params))
    step = tf.group(trained, *[v.assign_add(c) for v, c in zip(state, change)])

# 6. The monitored session: worker 0 initialises w~. At the start and the end, each waits for all.
me = session.Replica(step, loss, pull, push, update)  # what to run, and what to measure
with session.training(
    task, server, [*params, *state], [me], evaluate=functools.partial(network.evaluate, net)
) as sess:
    while not sess.should_stop():  # 7. The loop
        sess.run(step)  # one step: pull, T local steps, push
