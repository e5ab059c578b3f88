"""Synchronous SGD with backup workers (Chen et al. 2016, arXiv 1604.00981).

Each worker repeats:

    wait   for its token: how many updates there have been
    pull   w <- w~
           g_k = gradient of the mean loss on a fresh mini-batch of its own shard, at w
    push   g_k, together with the token

The chief, beside its own training, repeats: of the n gradients of this round it gathers the first
n - b (--backup_workers b), one from each worker, and drops those that come late; then

    w~ <- w~ - eta / (n - b) sum_k g_k,  and every worker gets a token
"""

from common import cluster, copies, data, models, session  # import first: quiet start-up
from common.training.rounds import Rounds
import tensorflow.compat.v1 as tf

# Defaults of this example's flags; --steps counts the updates, each of all workers together.
DEFAULTS = {"workers": 2, "ps": 1, "steps": 1000, "learning_rate": 0.4, "backup_workers": 0}

# 1. Who am I? The flags, or TF_CONFIG, say which task of which cluster.
tf.disable_eager_execution()  # graphs and sessions; the README says why
task = cluster.Task.from_flags("worker", DEFAULTS)
flags = task.flags

# 2. This task's server: the others reach this process through it, and it reaches them.
server = tf.train.Server(task.cluster, task.job, task.index, config=task.config)

# 3. The global parameters w~, and the count of their updates, live on the parameter servers.
with tf.device(tf.train.replica_device_setter(cluster=task.cluster)):
    params = models.create(flags)
    global_step = tf.train.get_or_create_global_step()

# The machine that makes the workers wait for each other (common/training/rounds.py), also there.
rounds = Rounds(task, params, global_step)

with tf.device(task.device):
    # 4. This worker's shard of the data: examples k, k + n, k + 2n, ... for worker k of n.
    next_batch = data.batches(flags, worker=task.index, workers=flags.workers)

    # 5. The scheme. Wait for a token, then pull: w <- w~
    token = rounds.wait()
    w, _ = copies.pull(params, global_step, after=token)
    loss, grads = models.gradients(flags.model, w, next_batch())
    step = rounds.push(grads, token)

# The update, by a thread of the chief: w~ <- w~ - eta / (n - b) sum_k g_k, then new tokens.
count = flags.workers - flags.backup_workers
total = rounds.gather(count)  # sum_k g_k
optimizer = tf.train.GradientDescentOptimizer(flags.learning_rate / count)
with session.next_update(global_step, flags, after=total) as number:
    update = optimizer.apply_gradients(zip(total, params))
rounds.release(update, number)

# 6. The session: TensorFlow's monitored session with its standard hooks.
with session.training(task, server, step, loss=loss, number=token, rounds=rounds) as sess:
    while not sess.should_stop():  # 7. The loop
        sess.run(step)  # the whole graph once: a token, a fresh pull, a fresh batch
