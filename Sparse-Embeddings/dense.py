"""The same as worker.py, but the whole table travels in each pull and push: what to compare with.
`bash run.sh --dense`

Each worker repeats this, without waiting for the others:

    pull   w <- w~, E <- E~
           g, h = gradients of the mean loss on a fresh mini-batch of ratings, at w and E
    push   w~ <- w~ - eta g, E~ <- E~ - eta h; with Adagrad,
           first G <- G + g^2, from 0.1, then eta / sqrt(G) in place of eta
"""

from common import cluster, copies, session  # import first: quiet start-up
import tensorflow.compat.v1 as tf

import network  # in this folder, as is ratings
import ratings

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

with tf.device(task.device):  # this worker's GPU, or its CPU
    # 4. Worker k of n gets ratings k, k + n, ...; next_batch() adds ops that draw a new batch.
    next_batch = ratings.batches(flags, worker=task.index, workers=flags.workers)
    ids, values = next_batch()

    # 5. The scheme. Staleness: update.number - pull.count, both on the ps
    everything = [*params, *copies.blocks_of(table)]
    pull = copies.pull(everything, global_step)  # w <- w~, E <- E~
    loss, grads = network.gradients(pull.w, ids, values)
    push = copies.send(grads, everything)  # the gradients travel to the ps

# Push: w~ <- w~ - eta g, and the same for all of E~, on the ps, once the gradients have arrived.
# global_step counts it first (update.number: the count before). After --steps updates,
# OutOfRangeError ends the loop instead.
with session.next_update(global_step, flags, push) as update:
    optimizer = {
        "sgd": tf.train.GradientDescentOptimizer,
        "adagrad": tf.train.AdagradOptimizer,
    }[flags.optimizer](flags.learning_rate)  # schedule by update.number
    step = optimizer.apply_gradients(zip(push.values, everything))

# 6. The session: worker 0 initialises w~ and E~. At the start and the end, each waits for all.
me = session.Replica(step, loss, pull, push, update)  # what to run, and what to measure
with session.training(
    task, server, params, [me], tables=[table],
    evaluate=network.evaluate, test=ratings.test(flags),
) as sess:  # fmt: skip
    while not sess.should_stop():  # 7. The loop
        sess.run(step)  # one step: batch; pull; gradient; push
