"""Stale synchronous parallel: HogWild with a bound on how far workers drift apart (Ho et al. 2013).

Each worker repeats this. Its step t begins only when every other worker has finished its step
t - 1 - s, where s is --max_staleness:

    wait   until the slowest worker is at most s steps behind
    pull   w <- w~
           g = gradient of the mean loss on a fresh mini-batch of its own shard, at w
    push   w~ <- w~ - eta g
    tick   this worker has finished one more step

With s = 0 the workers go in lockstep; with a large s this is HogWild.
"""

from common import cluster, copies, data, models, session  # import first: quiet start-up
from clocks import Clocks
import tensorflow.compat.v1 as tf

# Flags and their defaults (--help lists them all). --steps: total updates by all workers.
DEFAULTS = {"workers": 2, "ps": 1, "steps": 2000, "learning_rate": 0.2, "max_staleness": 3}

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

# How many steps each worker has finished, and queues of tokens to wait for: on the ps, too.
clocks = Clocks(task, global_step)

with tf.device(task.device):  # this worker's GPU, or its CPU
    # 4. Worker k of n gets examples k, k + n, ...; next_batch() adds ops that draw a new batch.
    next_batch = data.batches(flags, worker=task.index, workers=flags.workers)

    # 5. The scheme. Staleness: update.number - pull.count, both on the ps
    token = clocks.wait()  # until the slowest worker is at most --max_staleness steps behind
    pull = copies.pull(params, global_step, after=token.number)  # w <- w~, once there is a token
    loss, grads = models.gradients(flags, pull.w, next_batch())
    push = copies.send(grads, params)  # the gradients travel to the ps

# Push: w~ <- w~ - eta g, on the ps, once the gradients have arrived. global_step counts it first
# (update.number: the count before). After --steps updates, OutOfRangeError ends the loop instead.
with session.next_update(global_step, flags, push) as update:
    optimizer = tf.train.GradientDescentOptimizer(flags.learning_rate)  # schedule by update.number
    applied = optimizer.apply_gradients(zip(push.values, params))
step = clocks.tick(applied)  # one more step is finished: those who wait for it may go on

# 6. The monitored session: worker 0 initialises w~. At the start and the end, each waits for all.
me = session.Replica(step, loss, pull, push, update, token=token)  # what to run and to measure
with session.training(task, server, params, [me], waits=clocks) as sess:
    while not sess.should_stop():  # 7. The loop
        sess.run(step)  # one step: token, pull; a batch, before or after; gradient; push
