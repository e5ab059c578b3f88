"""From a table with words and gaps to a served model: HogWild with a project's own parts.

Each worker repeats this, without waiting for the others:

    pull   w <- w~
           g = gradient of the mean loss on a fresh mini-batch of its own shard, at w
    push   w~ <- Adam(w~, g)

Worker 0 evaluates on a validation set. When that has not become better --patience times, the run
ends, and the best parameters are kept.
"""

from common import cluster, copies, session  # import first: quiet start-up
import tensorflow.compat.v1 as tf

import network  # in this folder, as is table
import table

# Flags and their defaults (--help lists them all). --steps: total updates by all workers.
DEFAULTS = {
    "workers": 2,
    "ps": 1,
    "steps": 20_000,
    "learning_rate": 0.002,
    "hidden": 64,
    "model": "rent",  # unknown to common/: this example's only network
    "data": "flats.csv",  # in this folder
    "target": None,  # these two: the metric is not an accuracy
    "target_accuracy": None,
    "evaluate_every": 100,
    "patience": 10,
}

# 1. Who am I? Flags or TF_CONFIG give this worker's index and the addresses of all tasks.
tf.disable_eager_execution()  # use graphs and sessions; the main README says why
task = cluster.Task.from_flags("worker", DEFAULTS)
flags = task.flags
learnt = table.learn(flags.data)  # means, deviations and words of the training part
if task.is_chief:
    table.keep(flags.checkpoint_dir, learnt)  # for export.py

# 2. This task's server: the tasks talk to each other through their servers.
server = tf.train.Server(task.cluster, task.job, task.index, config=task.config)

# 3. Parameters w~ and global_step, which counts their updates: on the ps, shared by all workers.
with tf.device(tf.train.replica_device_setter(cluster=task.cluster)):
    params = network.create(flags, table.width(learnt))
    global_step = tf.train.get_or_create_global_step()

with tf.device(task.device):  # this worker's GPU, or its CPU
    # 4. Worker k of n gets examples k, k + n, ...; next_batch() adds ops that draw a new batch.
    next_batch = table.batches(flags, task.index, flags.workers, learnt)

    # 5. The scheme. Staleness: update.number - pull.count, both on the ps
    pull = copies.pull(params, global_step)  # w <- w~
    loss, grads = network.gradients(pull.w, next_batch(), learnt)
    push = copies.send(grads, params)  # the gradients travel to the ps

# Push: Adam, on the ps, once the gradients have arrived. global_step counts it first
# (update.number: the count before). After --steps updates, OutOfRangeError ends the loop instead.
with session.next_update(global_step, flags, push) as update:
    optimizer = tf.train.AdamOptimizer(flags.learning_rate)  # schedule by update.number
    step = optimizer.apply_gradients(zip(push.values, params))

# 6. The monitored session: worker 0 initialises w~. At the start and the end, each waits for all.
me = session.Replica(step, loss, pull, push, update)  # what to run, and what to measure
with session.training(
    task, server, params, [me],
    evaluate=network.measures(learnt),
    validation=table.arrays(flags.data, "validation"), test=table.arrays(flags.data, "test"),
) as sess:  # fmt: skip
    while not sess.should_stop():  # 7. The loop
        sess.run(step)  # one step: pull and fresh batch, in any order; gradient; push
