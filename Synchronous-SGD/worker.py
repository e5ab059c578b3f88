"""Synchronous SGD with backup workers (Chen et al. 2016, arXiv 1604.00981).

Each worker repeats:

    wait   for a token: how many updates there have been (its newest, if it is late)
    pull   w <- w~
           g_k = gradient of the mean loss on a fresh mini-batch of its own shard, at w
    push   g_k, together with the token

The chief (worker 0), beside its own training, repeats: it gathers the first n - b gradients of this
round (--backup_workers b), at most one from each worker, and drops those that come late; then

    w~ <- w~ - eta / (n - b) sum_k g_k,  and every worker gets a token
"""

from common import cluster, copies, data, models, session  # import first: quiet start-up
from common.training.rounds import Rounds
import tensorflow.compat.v1 as tf

# This example's flags and their defaults; --help lists all. --steps counts the updates, each of
# all workers together.
DEFAULTS = {"workers": 2, "ps": 1, "steps": 1000, "learning_rate": 0.4, "backup_workers": 0}

# 1. Who am I? A worker (ps.py is the server); flags or TF_CONFIG say which one of which cluster.
tf.disable_eager_execution()  # graphs and sessions; the README says why
task = cluster.Task.from_flags("worker", DEFAULTS)
flags = task.flags

# 2. This task's server: through it this process and the others reach each other.
server = tf.train.Server(task.cluster, task.job, task.index, config=task.config)

# 3. The global parameters w~ and the count of their updates: on the ps, the same for all workers.
with tf.device(tf.train.replica_device_setter(cluster=task.cluster)):
    params = models.create(flags)
    global_step = tf.train.get_or_create_global_step()

# Queues of tokens and of gradients, also on the ps, with which workers wait for each other.
rounds = Rounds(task, params, global_step)

with tf.device(task.device):
    # 4. Worker k of n has the examples k, k + n, ...; next_batch() makes tensors, new in each run.
    next_batch = data.batches(flags, worker=task.index, workers=flags.workers)

    # 5. The scheme. Wait for a token, then pull: w <- w~
    token = rounds.wait()
    w, _ = copies.pull(params, global_step, after=token)  # the token is the count
    loss, grads = models.gradients(flags.model, w, next_batch())
    step = rounds.push(grads, token)

# The update: w~ <- w~ - eta / (n - b) sum_k g_k, then a token for everybody.
# Every worker builds this part of the graph; only a thread of the chief runs it, once per round.
count = flags.workers - flags.backup_workers
total = rounds.gather(count)  # sum_k g_k
optimizer = tf.train.GradientDescentOptimizer(flags.learning_rate / count)  # of the mean
with session.next_update(global_step, flags, after=total) as number:
    update = optimizer.apply_gradients(zip(total, params))
rounds.release(update, number)

# 6. The monitored session: worker 0 initialises w~, hands out the first tokens and starts its
# thread; loss and token of each step are noted.
with session.training(task, server, step, loss=loss, number=token, rounds=rounds) as sess:
    while not sess.should_stop():  # 7. The loop
        sess.run(step)  # one step: token, pull, fresh batch, push
