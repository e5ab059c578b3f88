"""Synchronous SGD with backup workers (Chen et al. 2016, arXiv 1604.00981).

Every worker, again and again:

    wait   for a token of its own: it says how many updates there have been
    pull   w <- w~
           g_k = gradient of the mean loss on a fresh mini-batch of its own shard, at w
    push   g_k, together with the token

The chief besides, again and again: of the n gradients of this update it takes the first n - b
(--backup_workers b), one from each worker, and drops those that come late; then

    w~ <- w~ - eta / (n - b) sum_k g_k,  and every worker gets a token
"""

from common import cluster, data, models, session  # ours; first: quietens TensorFlow
from common import copies
import tensorflow.compat.v1 as tf

# Of the flags; "steps" counts the updates, each made of the gradients of all workers.
DEFAULTS = {"workers": 2, "ps": 1, "steps": 1000, "learning_rate": 0.4, "backup_workers": 0}

# 1. Who am I? The flags, or TF_CONFIG, say which task of which cluster.
tf.disable_eager_execution()  # graphs and sessions; the README says why
task = cluster.Task.from_flags("worker", DEFAULTS)
flags = task.flags

# 2. This task's server: the others reach this process through it, and it reaches them.
server = tf.train.Server(task.cluster, task.job, task.index, config=task.config)

# 3. The global parameters w~, and the count of their updates, live on the parameter servers.
on_ps = tf.train.replica_device_setter(cluster=task.cluster)
with tf.device(on_ps):
    params = models.create(flags)
    global_step = tf.train.get_or_create_global_step()

# On the ps, too: a queue of tokens for each worker, and one of the gradients that have arrived.
with tf.device(global_step.device):
    tokens = [
        tf.FIFOQueue(-1, tf.int64, [[]], shared_name=f"tokens-{k}") for k in range(task.workers)
    ]
    kinds = [(tf.int32, []), (tf.int64, []), *[(p.dtype.base_dtype, p.shape) for p in params]]
    arrived = tf.FIFOQueue(task.workers, *zip(*kinds), shared_name="gradients")

    def give(queues, updates):
        """A token for each queue; after the last update none is left, which ends who waits."""
        return tf.cond(
            updates < flags.steps,
            lambda: tf.group(*[queue.enqueue(updates) for queue in queues]),
            lambda: tf.group(*[queue.close() for queue in queues]),
        )

    # Wait: a worker that is late finds several tokens, of which only the newest counts.
    first = tokens[task.index].dequeue()
    with tf.control_dependencies([first]):
        others = tokens[task.index].dequeue_many(tokens[task.index].size())
    token = tf.reduce_max(tf.concat([[first], others], axis=0))

with tf.device(task.device):
    # 4. This worker's shard of the data: examples k, k + n, k + 2n, ... for worker k of n.
    next_batch = data.batches(flags, worker=task.index, workers=task.workers)

    # 5. The scheme. Pull: w <- w~
    updates = tf.identity(token)
    with tf.control_dependencies([token]):
        w = copies.pull(params)
    with tf.control_dependencies([updates]):
        batch = next_batch()
    loss, grads = models.gradients(flags.model, w, batch)
    pushed = copies.push(grads, params, global_step.device)

# Push: the gradient waits on the ps until the others have arrived.
with tf.device(global_step.device):
    step = arrived.enqueue([task.index, token, *pushed])

    # The update. One gradient of it from each worker counts; late ones are dropped.
    now = global_step.read_value()

    def take_one(who, total):
        worker, at, *gradient = arrived.dequeue()
        counts = tf.equal(at, now) & ~who[worker]
        total = tf.cond(counts, lambda: [s + g for s, g in zip(total, gradient)], lambda: total)
        return who | (tf.one_hot(worker, task.workers, counts, False)), total

    def missing(who, _):
        return tf.math.count_nonzero(who) < task.workers - flags.backup_workers

    start = tf.zeros([task.workers], tf.bool), [tf.zeros(p.shape) for p in params]
    who, total = tf.while_loop(missing, take_one, start, parallel_iterations=1)
    update = [s / (task.workers - flags.backup_workers) for s in total]  # 1/(n - b) sum_k g_k

# w~ <- w~ - eta / (n - b) sum_k g_k, then a token for everybody
optimizer = tf.train.GradientDescentOptimizer(flags.learning_rate)
number = session.next_update(global_step, flags, after=update)
with tf.device(global_step.device), tf.control_dependencies([number]):
    apply = optimizer.apply_gradients(zip(update, params))
with tf.device(global_step.device), tf.control_dependencies([apply]):
    release = give(tokens, number + 1)
rounds = session.Rounds(task, number, who, release, tf.group(*[queue.close() for queue in tokens]))
# Everybody begins with a token, too; when the chief is started again, everybody with a new one.
begin = [give(tokens if task.is_chief else [tokens[task.index]], now)]

# 6. The session, with TensorFlow's standard hooks.
measured = loss, updates, updates, ([updates], w, grads)
with session.training(task, server, params, step, measured, begin, rounds) as sess:
    # 7. The loop: every step computes the whole graph anew, with a fresh batch and a fresh pull;
    # while it takes less than 10 ms, a run makes several of them (common/chain.py).
    while not sess.should_stop():
        sess.run(step)
