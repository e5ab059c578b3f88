"""AEASGD: asynchronous elastic averaging (Zhang, Choromanska, LeCun 2015, arXiv 1412.6651, Alg. 1).

Every worker, again and again, waiting for nobody:

    pull   w~, and with x = w:  e = alpha (x - w~),  w <- w - e
    push   w~ <- w~ + e
    local  T times on a fresh mini-batch:  w <- w - eta g,  the first g at x, the others at w

Each worker keeps its own w for ever; alpha is --moving_rate.
"""

from common import cluster, data, models, session  # ours; first: quietens TensorFlow
from common import copies
import tensorflow.compat.v1 as tf

# Of the flags; "steps" counts the updates of all workers together.
DEFAULTS = {
    "workers": 2,
    "ps": 1,
    "steps": 400,
    "window": 10,
    "learning_rate": 0.2,
    "moving_rate": None,
}

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

    # 5. The scheme. This worker's own w, equal to w~ when the session begins.
    own = copies.local(params)
    begin = [w.assign(p) for w, p in zip(own, copies.pull(params))]

    # Pull w~; with x = w: e = alpha (x - w~)
    pulled_at = session.updates_so_far(global_step)  # to measure the staleness
    pulled = copies.pull(params, after=pulled_at)
    x = [w.read_value() for w in own]
    update = [flags.moving_rate * (w - center) for w, center in zip(x, pulled)]
    pushed = copies.push(update, params)

    # w <- w - e; T local steps, each on a fresh batch: w <- w - eta g, the first g at x
    def local_step(t, loss, w, at):
        loss, grads = models.gradients(flags.model, at, next_batch())
        w = [p - flags.learning_rate * g for p, g in zip(w, grads)]
        return t + 1, loss, w, w

    def more(t, *_):
        return t < flags.window

    start = 0, 0.0, [p - e for p, e in zip(x, update)], x
    _, loss, w, _ = tf.while_loop(more, local_step, start, parallel_iterations=1)
    keep = [variable.assign(value) for variable, value in zip(own, w)]

# Push: w~ <- w~ + e, whenever it arrives; nobody waits.
# Count first: next_update takes the next number of global_step and ends the session after --steps,
# so that no update too many is applied. Hence no global_step in apply_gradients.
number = session.next_update(global_step, flags, after=[pulled_at, *pushed])
with tf.control_dependencies([number]):
    apply = [p.assign_add(e) for p, e in zip(params, pushed)]
step = tf.group(*apply, *keep)

# 6. The session, with TensorFlow's standard hooks.
measured = loss, number, pulled_at, (pulled, keep)
with session.training(task, server, params, step, measured, begin) as sess:
    # 7. The loop: every step computes the whole graph anew, with a fresh batch and a fresh pull;
    # while it takes less than 10 ms, a run makes several of them (common/chain.py).
    while not sess.should_stop():
        sess.run(step)
