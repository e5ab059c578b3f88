"""Dynamic-SGD: the staler, the smaller (Jiang et al., SIGMOD 2017; the rule of dist-keras DynSGD).

Every worker, again and again, waiting for nobody:

    pull   w <- w~
    local  T times on a fresh mini-batch:  g_t = gradient at w,  w <- w - eta g_t
    push   w~ <- w~ + d / (s + 1),  with  d = w - w_pulled  and the staleness  s
"""

from common import cluster, data, models, session  # ours; first: quietens TensorFlow
from common import copies
import tensorflow.compat.v1 as tf

# Of the flags; "steps" counts the updates of all workers together.
DEFAULTS = {"workers": 2, "ps": 1, "steps": 400, "window": 10, "learning_rate": 0.2}

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

with tf.device(task.device):
    # 4. This worker's shard of the data: examples k, k + n, k + 2n, ... for worker k of n.
    next_batch = data.batches(flags, worker=task.index, workers=task.workers)

    # 5. The scheme. Pull: w <- w~
    pulled_at = session.updates_so_far(global_step)  # to measure the staleness
    pulled = copies.pull(params, after=pulled_at)

    # T local steps, each on a fresh batch at the moved w: w <- w - eta g_t
    def local_step(t, loss, w):
        loss, grads = models.gradients(flags.model, w, next_batch())
        w = [p - flags.learning_rate * g for p, g in zip(w, grads)]
        return t + 1, loss, w

    def more(t, *_):
        return t < flags.window

    start = 0, 0.0, pulled
    _, loss, w = tf.while_loop(more, local_step, start, parallel_iterations=1)
    update = [new - old for new, old in zip(w, pulled)]  # d = w - w_pulled
    pushed = copies.push(update, params)

# Push: w~ <- w~ + d / (s + 1), where s updates by others came since the pull.
# Count first: next_update takes the next number of global_step and ends the session after --steps,
# so that no update too many is applied. Hence no global_step in apply_gradients.
number = session.next_update(global_step, flags, after=[pulled_at, *pushed])
with tf.device(global_step.device):
    scale = 1 / tf.cast(number - pulled_at + 1, tf.float32)
step = tf.group(*[p.assign_add(scale * d) for p, d in zip(params, pushed)])

# 6. The session, with TensorFlow's standard hooks.
measured = loss, number, pulled_at, (pulled, update)
with session.training(task, server, params, step, measured) as sess:
    # 7. The loop: every step computes the whole graph anew, with a fresh batch and a fresh pull;
    # while it takes less than 10 ms, a run makes several of them (common/chain.py).
    while not sess.should_stop():
        sess.run(step)
