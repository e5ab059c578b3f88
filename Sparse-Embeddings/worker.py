"""HogWild! on a table of embeddings: only the rows that a batch names travel (Niu et al. 2011).

The table E~ has a row for each user and each item. Blocks of its rows lie on all ps. Each worker
repeats this, without waiting for the others:

           ids of a fresh mini-batch of ratings of its own shard; rows: the distinct ids
    pull   w <- w~, e <- E~[rows]
           g, h = gradients of the mean loss, at w and e
    push   w~ <- w~ - eta g, E~[rows] <- E~[rows] - eta h; with Adagrad,
           first G <- G + g^2, from 0.1, then eta / sqrt(G) in place of eta
"""

from common import cluster, copies, session  # import first: quiet start-up
import tensorflow.compat.v1 as tf

import network  # in this folder, as are ratings and updated
import ratings
import updated

# Flags and their defaults (--help lists them all). --steps: total updates by all workers.
DEFAULTS = {
    "workers": 2,
    "ps": 2,
    "steps": 6000,
    "batch_size": 64,
    "learning_rate": 1.0,
    "optimizer": "adagrad",
    "model": "embeddings",  # unknown to common/: this example's only network
    "hidden": None,
    "width": 32,
    "data": "planted",
    "planted_users": 2000,
    "planted_items": 198_000,
    "planted_ratings": 1_000_000,
    "zipf": 1.1,
    "dense": False,
    "threads": None,
    "target": None,
    "target_accuracy": None,
    "evaluate_every": None,
    "evaluate_on": 1000,
    "checkpoint_every": 1000,
}

# 1. Who am I? Flags or TF_CONFIG give this worker's index and the addresses of all tasks.
tf.disable_eager_execution()  # use graphs and sessions; the main README says why
task = cluster.Task.from_flags("worker", DEFAULTS)
flags = task.flags

# 2. This task's server: the tasks talk to each other through their servers.
server = tf.train.Server(task.cluster, task.job, task.index, config=task.config)

# 3. Parameters w~, global_step, which counts their updates, and the table: shared by all workers.
with tf.device("/job:ps/task:0"):
    params = network.dense(flags)
    global_step = tf.train.get_or_create_global_step()
with tf.device(tf.train.replica_device_setter(cluster=task.cluster)):
    table = network.table(flags)  # a block of its rows on each ps, in turn
times = updated.Times(table)  # how often each row has been updated

with tf.device(task.device):  # this worker's GPU, or its CPU
    # 4. Worker k of n gets ratings k, k + n, ...; next_batch() adds ops that draw a new batch.
    next_batch = ratings.batches(flags, worker=task.index, workers=flags.workers)
    ids, values = next_batch()

    # 5. The scheme. Staleness: update.number - pull.count, both on the ps
    rows = copies.rows(table, ids)  # the distinct ones; their numbers travel to the ps
    pull = copies.pull(params, global_step, rows=[rows])  # w <- w~; pull.w[-1]: these rows
    seen = times.read(rows, pull)
    loss, grads = network.gradients(pull.w, rows.where, values)
    push = copies.send(grads, params, rows=[rows])  # the gradients travel to the ps

# Push: w~ <- w~ - eta g, and the same for these rows alone, on the ps, once the gradients have
# arrived. global_step counts it first (update.number: the count before). After --steps updates,
# OutOfRangeError ends the loop instead.
with session.next_update(global_step, flags, push) as update:
    optimizer = {
        "sgd": tf.train.GradientDescentOptimizer,
        "adagrad": tf.train.AdagradOptimizer,
    }[flags.optimizer](flags.learning_rate)  # schedule by update.number
    step = optimizer.apply_gradients(zip(push.values, [*params, *copies.blocks_of(table)]))
    stale = times.count(rows, seen)  # runs with the step, since the events say it (more=)

# 6. The session: worker 0 initialises w~ and E~. At the start and the end, each waits for all.
me = session.Replica(step, loss, pull, push, update, more=stale)  # what to run, and to measure
with session.training(
    task, server, params, [me], tables=[table],
    evaluate=network.evaluate, test=ratings.test(flags),
) as sess:  # fmt: skip
    while not sess.should_stop():  # 7. The loop
        sess.run(step)  # one step: batch; pull; gradient; push
