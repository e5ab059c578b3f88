"""A Keras network, trained by HogWild. `--scheme agn` and `local_sgd` run agn.py and local_sgd.py.

w~ are its parameters, s~ its state: the moving statistics of batch normalisation. Each worker
repeats this. It waits for nobody, and holds no lock between pull and push:

    pull   w <- w~,  s <- s~
           g = gradient of the mean loss on a fresh mini-batch of its own shard, at w, with dropout;
           s_new = the state after that batch, from s
    push   w~ <- w~ - eta g,  s~ <- s~ + (s_new - s)
"""

import functools

from common import cluster, copies, data, fail, session  # import first: quiet start-up
import tensorflow.compat.v1 as tf

import network  # in this folder

# Flags and their defaults (--help lists them all). --steps: total updates by all workers.
DEFAULTS = {
    "workers": 2, "ps": 1, "steps": 600, "window": 10, "learning_rate": 0.1,
    "model": "keras_net", "bn_momentum": 0.9, "dropout": 0.2,  # network.py
    "scheme": ("hogwild", "agn", "local_sgd"),  # agn.py, local_sgd.py
}  # fmt: skip

# 1. Who am I? Flags or TF_CONFIG give this worker's index and the addresses of all tasks.
tf.disable_eager_execution()  # use graphs and sessions; the main README says why
task = cluster.Task.from_flags("worker", DEFAULTS)
flags = task.flags
if flags.window != DEFAULTS["window"]:
    fail("--window: HogWild has none: leave it out, or use --scheme agn or local_sgd")
flags.window = 1  # one mini-batch between a pull and a push

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
    w, s = network.split(net, pull.w)
    loss, grads, new = network.gradients(net, w, s, next_batch())
    change = [after - before for after, before in zip(new, s)]  # s_new - s
    push = copies.send([*grads, *change], [*params, *state])  # both travel to the ps
grads, change = network.split(net, push.values)

# Push: w~ <- w~ - eta g, s~ <- s~ + (s_new - s), on the ps, once both have arrived. global_step
# counts it first (update.number: the count before). After --steps updates, OutOfRangeError ends
# the loop instead.
with session.next_update(global_step, flags, push) as update:
    optimizer = tf.train.GradientDescentOptimizer(flags.learning_rate)  # schedule by update.number
    trained = optimizer.apply_gradients(zip(grads, params))
    step = tf.group(trained, *[v.assign_add(c) for v, c in zip(state, change)])

# 6. The monitored session: worker 0 initialises w~. At the start and the end, each waits for all.
me = session.Replica(step, loss, pull, push, update)  # what to run, and what to measure
with session.training(
    task, server, [*params, *state], [me], evaluate=functools.partial(network.evaluate, net)
) as sess:
    while not sess.should_stop():  # 7. The loop
        sess.run(step)  # one step: pull and fresh batch, in any order; gradient; push
