"""Async-DiLoCo: DiLoCo without waiting; the momentum on the ps is delayed (Liu et al. 2024, arXiv
2401.09135, with c = 0).

Each worker repeats this, without waiting for the others:

    pull   w <- w~
    local  T times, each on a fresh mini-batch:  g = gradient at w,  i <- i + 1,
           m <- b1 m + (1 - b1) g,  v <- b2 v + (1 - b2) g g,
           w <- w - eta (m^ / (sqrt(v^) + eps) + decay w),
           with m^ = m / (1 - b1^i), v^ = v / (1 - b2^i);  m, v and i are kept from push to push
    push   B <- B + d,  with  d = w_pulled - w;  at every N-th update (--delay_period N):
           u <- beta u + B / N,  w~ <- w~ - rate (beta u + d / N),  B <- 0
           at the others:  w~ <- w~ - rate d / N

With --dynamic_steps, worker k makes T_k = max(1, floor(T t_min / t_k)) steps, so that all windows
take about equally long: t_k is its measured time of a step, t_min the fastest worker's.
"""

from common import cluster, copies, data, models, session  # import first: quiet start-up
import tensorflow.compat.v1 as tf

# Flags and their defaults (--help lists them all). --steps: total updates by all workers.
DEFAULTS = {"workers": 2, "ps": 1, "steps": 200, "window": 20, "learning_rate": 0.002,
            "inner": "adamw", "inner_beta1": 0.9, "inner_beta2": 0.99, "inner_epsilon": 1e-8,
            "weight_decay": 0.1, "outer_rate": 0.7, "outer_momentum": 0.9, "delay_period": None,
            "dynamic_steps": False}  # fmt: skip

# 1. Who am I? Flags or TF_CONFIG give this worker's index and the addresses of all tasks.
tf.disable_eager_execution()  # use graphs and sessions; the main README says why
task = cluster.Task.from_flags("worker", DEFAULTS)
flags = task.flags

# 2. This task's server: the tasks talk to each other through their servers.
server = tf.train.Server(task.cluster, task.job, task.index, config=task.config)


# 3. Parameters w~ and global_step, which counts their updates: on the ps, shared by all workers.
# Beside each parameter, its momentum u and the sum B of the moves that u does not contain yet.
def beside(p, name):
    with tf.device(p.device):
        return tf.Variable(tf.zeros(p.shape), trainable=False, name=f"{p.op.name}/{name}")


with tf.device(tf.train.replica_device_setter(cluster=task.cluster)):
    params = models.create(flags)  # weights, biases, weights, ...
    global_step = tf.train.get_or_create_global_step()
momentum, waiting = [beside(p, "u") for p in params], [beside(p, "B") for p in params]

with tf.device(task.device):  # this worker's GPU, or its CPU
    # 4. Worker k of n gets examples k, k + n, ...; next_batch() adds ops that draw a new batch.
    next_batch = data.batches(flags, worker=task.index, workers=flags.workers)

    # 5. The scheme. Staleness: update.number - pull.count, both on the ps
    pull = copies.pull(params, global_step)  # w <- w~

    # This worker's own moments m and v, and i, how many steps they contain: kept between pushes.
    own = [*copies.local(params), *copies.local(params), *copies.local([global_step])]
    b1, b2 = flags.inner_beta1, flags.inner_beta2

    # m <- b1 m + (1 - b1) g, v <- b2 v + (1 - b2) g g,
    # w <- w - eta (m^ / (sqrt(v^) + eps) + decay w)
    def adamw(w, g, m, v, i):
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        unbiased_m, unbiased_v = m / (1 - b1**i), v / (1 - b2**i)  # m^, v^
        direction = unbiased_m / (tf.sqrt(unbiased_v) + flags.inner_epsilon)
        return w - flags.learning_rate * (direction + flags.weight_decay * w), m, v

    # T local steps, g of a fresh batch at the local w; with --inner sgd: w <- w - eta g
    def local_step(t, loss, w, m, v, i):
        loss, grads = models.gradients(flags, w, next_batch())
        if flags.inner == "sgd":
            return t + 1, loss, [p - flags.learning_rate * g for p, g in zip(w, grads)], m, v, i
        power = tf.cast(i + 1, tf.float32)
        w, m, v = zip(*[adamw(*each, power) for each in zip(w, grads, m, v)])
        return t + 1, loss, list(w), list(m), list(v), i + 1

    # How many steps? T, or T_k by the newest measurements of all workers; 0: not measured yet. All
    # are 0 again when a worker's session begins; then each worker makes one window of T steps.
    window = flags.window
    if flags.dynamic_steps:
        with tf.device(global_step.device):
            own_kind = {"trainable": False, "collections": [tf.GraphKeys.LOCAL_VARIABLES]}
            seconds = tf.Variable(tf.zeros([flags.workers]), name="seconds_per_step", **own_kind)
        known = seconds.read_value()  # the rest on the worker: else each local step asks the ps
        fastest = tf.reduce_min(tf.boolean_mask(known, known > 0))
        mine = known[task.index]
        slower = tf.maximum(1.0, tf.floor(window * (fastest / mine)))
        window = tf.cast(tf.where_v2(mine > 0, slower, float(window)), tf.int32)

    def more(t, *_):
        return t < window

    n = len(params)
    kept = [a.read_value() for a in own]
    start = 0, 0.0, pull.w, kept[:n], kept[n : 2 * n], kept[-1]
    t, loss, w, m, v, i = tf.while_loop(more, local_step, start, parallel_iterations=1)
    keep = [a.assign(value) for a, value in zip(own, [*m, *v, i])]
    moved = [old - new for old, new in zip(pull.w, w)]  # d = w_pulled - w
    push = copies.send(moved, params)  # the differences travel to the ps
    if flags.dynamic_steps:  # t_k, to the ps
        took = (push.computed_at - pull.arrived_at) / tf.cast(t, tf.float64)
        with tf.device(global_step.device):
            keep.append(tf.scatter_update(seconds, task.index, tf.cast(took, tf.float32)))

# Push: B <- B + d; at every N-th update u <- beta u + B / N, w~ <- w~ - rate (beta u + d / N),
# B <- 0; at the others w~ <- w~ - rate d / N. On the ps, once d has arrived.
# A lock makes one update after another: what one reads of u, B and w~, no other may change
# meanwhile. (If its worker dies, the lock is free again.)
# global_step counts it first (update.number: the count before), then it is applied. After --steps
# updates, sess.run(step) raises OutOfRangeError instead, which ends the loop.
with tf.device(global_step.device), tf.control_dependencies([tf.group(*push.values)]):
    lock = tf.raw_ops.MutexLock(mutex=tf.raw_ops.MutexV2(shared_name="update"))
rate, beta, period = flags.outer_rate, flags.outer_momentum, flags.delay_period


def delayed_nesterov(p, u, b, d, nth):
    total = b + d
    new = tf.where_v2(nth, beta * u + total / period, u)
    move = tf.where_v2(nth, beta * new + d / period, d / period)
    rest = tf.where_v2(nth, tf.zeros_like(total), total)
    return [p.assign_sub(rate * move), u.assign(new), b.assign(rest)]


with tf.control_dependencies([lock]), session.next_update(global_step, flags, push) as update:
    nth = tf.equal((update.number + 1) % period, 0)
    sent = zip(params, momentum, waiting, push.values)
    applied = tf.group(*[delayed_nesterov(*each, nth) for each in sent])
with tf.device(global_step.device), tf.control_dependencies([applied]):
    unlock = tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)
step = tf.group(unlock, *keep)

# 6. The monitored session: worker 0 initialises w~. At the start and the end, each waits for all.
me = session.Replica(step, loss, pull, push, update, batches=t)  # what to run, and what to measure
with session.training(task, server, params, [me]) as sess:
    while not sess.should_stop():  # 7. The loop
        sess.run(step)  # one step: pull, T local steps, push
