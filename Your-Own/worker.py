"""Your own project: HogWild with its own network, data, optimizer and metric, and an extra flag.

Each worker repeats this, without waiting for the others:

    pull   w <- w~
           g = gradient of the mean loss on a fresh mini-batch of its own shard, at w, with dropout
    push   w~ <- Adam(w~, g), with a rate that decays with the number of updates
"""

from common import cluster, copies, fail, session  # import first: quiet start-up
import tensorflow.compat.v1 as tf

import network  # in this folder, as is table
import table

# Flags and their defaults (--help lists them all). --steps: total updates by all workers.
DEFAULTS = {
    "workers": 2,
    "ps": 1,
    "steps": 1000,
    "learning_rate": 0.01,
    "hidden": 32,
    "model": "dropout_net",  # unknown to common/: this example's only network
    "data": "tumours.csv",  # in this folder
    "dropout": 0.2,  # unknown to common/: becomes a flag, --dropout
}

# 1. Who am I? Flags or TF_CONFIG give this worker's index and the addresses of all tasks.
tf.disable_eager_execution()  # use graphs and sessions; the main README says why
task = cluster.Task.from_flags("worker", DEFAULTS)
flags = task.flags
if not 0 <= flags.dropout < 1:
    fail(f"--dropout {flags.dropout:g}: must be at least 0 and below 1")

# 2. This task's server: the tasks talk to each other through their servers.
server = tf.train.Server(task.cluster, task.job, task.index, config=task.config)

# 3. Parameters w~ and global_step, which counts their updates: on the ps, shared by all workers.
with tf.device(tf.train.replica_device_setter(cluster=task.cluster)):
    params = network.create(flags, *table.sizes(flags.data))
    global_step = tf.train.get_or_create_global_step()

with tf.device(task.device):  # this worker's GPU, or its CPU
    # 4. Worker k of n gets examples k, k + n, ...; next_batch() adds ops that draw a new batch.
    next_batch = table.batches(flags, worker=task.index, workers=flags.workers)

    # 5. The scheme. Staleness: update.number - pull.count, both on the ps
    pull = copies.pull(params, global_step)  # w <- w~
    loss, grads = network.gradients(pull.w, next_batch(), flags.dropout)
    push = copies.send(grads, params)  # the gradients travel to the ps

# Push: Adam, on the ps, once the gradients have arrived. Its rate falls to a tenth over --steps
# updates. Its slots, two per parameter, are also on the ps and in the checkpoints.
# global_step counts it first (update.number: the count before), then it is applied. After --steps
# updates, sess.run(step) raises OutOfRangeError instead, which ends the loop.
with session.next_update(global_step, flags, push) as update:
    rate = tf.train.exponential_decay(flags.learning_rate, update.number, flags.steps, 0.1)
    optimizer = tf.train.AdamOptimizer(rate)
    step = optimizer.apply_gradients(zip(push.values, params))
tf.summary.scalar("schedule/learning_rate", rate)  # for TensorBoard

# A hook sees every step. This one writes the rate to logs/worker-K.log once a second.
log_rate = tf.train.LoggingTensorHook(
    {"rate": rate},
    every_n_secs=1,
    formatter=lambda v: f"[worker {task.index}] learning rate {v['rate']:.2g}",
)

# 6. The monitored session: worker 0 initialises w~. At the start and the end, each waits for all.
me = session.Replica(step, loss, pull, push, update)  # what to run, and what to measure
with session.training(
    task, server, params, [me],
    evaluate=network.evaluate, test=table.test(flags.data), hooks=[log_rate],
) as sess:  # fmt: skip
    while not sess.should_stop():  # 7. The loop
        sess.run(step)  # one step: pull and fresh batch, in any order; gradient; push
