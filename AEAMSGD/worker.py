"""AEAMSGD: elastic averaging with Nesterov momentum (Zhang et al. 2015, arXiv 1412.6651, Alg. 2).

Each worker repeats this, without waiting for the others:

    pull   w~, and with x = w:  e = alpha (x - w~),  w <- w - e
    push   w~ <- w~ + e
    local  T times, each on a fresh mini-batch:  v <- delta v - eta g,  w <- w + v,
           the first g at x + delta v, the others at w + delta v

Each worker keeps its own w and v throughout; alpha is --moving_rate, delta is --momentum.
"""

from common import cluster, copies, data, models, session  # import first: quiet start-up
import tensorflow.compat.v1 as tf

# Flags and their defaults (--help lists them all). --steps: total updates by all workers.
DEFAULTS = {
    "workers": 2,
    "ps": 1,
    "steps": 400,
    "window": 10,
    "learning_rate": 0.2,
    "moving_rate": None,  # alpha: 0.9 / workers
    "momentum": 0.9,
}

# 1. Who am I? Flags or TF_CONFIG give this worker's index and the addresses of all tasks.
tf.disable_eager_execution()  # use graphs and sessions; the main README says why
task = cluster.Task.from_flags("worker", DEFAULTS)
flags = task.flags

# 2. This task's server: the tasks talk to each other through their servers. Give it one more
# thread: if it has only one, on few cores, a push may wait until the local steps are done.
task.config.inter_op_parallelism_threads += 1
server = tf.train.Server(task.cluster, task.job, task.index, config=task.config)

# 3. Parameters w~ and global_step, which counts their updates: on the ps, shared by all workers.
with tf.device(tf.train.replica_device_setter(cluster=task.cluster)):
    params = models.create(flags)  # weights, biases, weights, ...
    global_step = tf.train.get_or_create_global_step()

with tf.device(task.device):  # this worker's GPU, or its CPU
    # 4. Worker k of n gets examples k, k + n, ...; next_batch() adds ops that draw a new batch.
    next_batch = data.batches(flags, worker=task.index, workers=flags.workers)

    # 5. The scheme. This worker's own w, equal to w~ when the session begins.
    own = copies.local(params)
    velocity = copies.local(params)
    first = copies.pull(params, global_step)
    begin = [w.assign(value) for w, value in zip(own, first.w)]
    begin += [v.assign(tf.zeros_like(v)) for v in velocity]

    # Pull w~. With x = w: e = alpha (x - w~). Staleness, on the ps: update.number - pull.count
    pull = copies.pull(params, global_step)
    x = [w.read_value() for w in own]
    e = [flags.moving_rate * (p - center) for p, center in zip(x, pull.w)]
    push = copies.send(e, params)  # e travels to the ps; the local steps do not wait

    # w <- w - e; T local steps, each on a fresh batch: v <- delta v - eta g, w <- w + v,
    # the first g at x + delta v, the others at w + delta v
    def local_step(t, loss, w, at, v):
        ahead = [p + flags.momentum * m for p, m in zip(at, v)]
        loss, grads = models.gradients(flags, ahead, next_batch())
        v = [flags.momentum * m - flags.learning_rate * g for m, g in zip(v, grads)]
        w = [p + m for p, m in zip(w, v)]
        return t + 1, loss, w, w, v

    def more(t, *_):
        return t < flags.window

    start = 0, 0.0, [p - q for p, q in zip(x, e)], x, [v.read_value() for v in velocity]
    _, loss, w, _, v = tf.while_loop(more, local_step, start, parallel_iterations=1)
    keep = [variable.assign(value) for variable, value in zip(own + velocity, w + v)]

# Push: w~ <- w~ + e, on the ps, once e has arrived.
# global_step counts it first (update.number: the count before), then it is applied. After --steps
# updates, sess.run(step) raises OutOfRangeError instead, which ends the loop.
with session.next_update(global_step, flags, push) as update:
    exchange = [p.assign_add(q) for p, q in zip(params, push.values)]
step = tf.group(*exchange, *keep)

# 6. The monitored session: worker 0 initialises w~. At the start and the end, each waits for all.
me = session.Replica(step, loss, pull, push, update, pushes_first=True)
with session.training(task, server, params, [me], begin=begin) as sess:
    while not sess.should_stop():  # 7. The loop
        sess.run(step)  # one step: pull; then push, and T local steps beside it
