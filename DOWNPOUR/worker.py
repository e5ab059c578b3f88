"""DOWNPOUR: Adagrad on the server and in the local steps (DistBelief, Dean et al. 2012).

Every worker, again and again, waiting for nobody:

    pull   w <- w~
    local  T times on a fresh mini-batch:  g_t = gradient at w,
           H <- H + g_t^2,  w <- w - eta g_t / sqrt(H);  H is kept from window to window
    push   G <- G + a^2,  w~ <- w~ - eta a / sqrt(G),  with the sum  a = sum g_t

Section 4.1 and Algorithm 1, with n_fetch = n_push = T and adaptive local steps.
"""

from common import cluster, data, models, session  # ours; first: quietens TensorFlow
from common import copies
import tensorflow.compat.v1 as tf

# Of the flags; "steps" counts the updates of all workers together.
DEFAULTS = {"workers": 2, "ps": 1, "steps": 400, "window": 10, "learning_rate": 0.05}

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

    # T local steps, each on a fresh batch at the moved w, with this worker's own accumulator H:
    # H <- H + g_t^2, w <- w - eta g_t / sqrt(H), total <- total + g_t
    own = copies.local(params, 0.1)

    def local_step(t, loss, w, total, h):
        loss, grads = models.gradients(flags.model, w, next_batch())
        h = [a + g * g for a, g in zip(h, grads)]
        w = [p - flags.learning_rate * g / tf.sqrt(a) for p, g, a in zip(w, grads, h)]
        total = [s + g for s, g in zip(total, grads)]
        return t + 1, loss, w, total, h

    def more(t, *_):
        return t < flags.window

    start = 0, 0.0, pulled, [tf.zeros_like(p) for p in pulled], [a.read_value() for a in own]
    _, loss, _, total, h = tf.while_loop(more, local_step, start, parallel_iterations=1)
    update = total  # a = sum g_t
    pushed = copies.push(update, params)
    keep = [a.assign(value) for a, value in zip(own, h)]

# Push: G <- G + a^2, w~ <- w~ - eta a / sqrt(G), whenever it arrives. G starts at 0.1.
optimizer = tf.train.AdagradOptimizer(flags.learning_rate, initial_accumulator_value=0.1)
# Count first: next_update takes the next number of global_step and ends the session after --steps,
# so that no update too many is applied. Hence no global_step in apply_gradients.
number = session.next_update(global_step, flags, after=[pulled_at, *pushed])
with tf.control_dependencies([number]):
    step = tf.group(optimizer.apply_gradients(zip(pushed, params)), *keep)

# 6. The session, with TensorFlow's standard hooks.
measured = loss, number, pulled_at, (pulled, update)
with session.training(task, server, params, step, measured) as sess:
    # 7. The loop: every step computes the whole graph anew, with a fresh batch and a fresh pull;
    # while it takes less than 10 ms, a run makes several of them (common/chain.py).
    while not sess.should_stop():
        sess.run(step)
