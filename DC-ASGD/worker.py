"""DC-ASGD: delay-compensated asynchronous SGD (Zheng et al. 2017, arXiv 1609.08326, Algorithm 2).

Each worker repeats this, without waiting for the others:

    pull   w <- w~
           g = gradient of the mean loss on a fresh mini-batch of its own shard, at w
    push   w~ <- w~ - eta (g + lambda g g (w~ - w_pulled)),  element by element

The lambda term (--dc_lambda) estimates how the gradient has changed: others may have moved w~ since
the pull. With --adaptive, each element has its own lambda, smaller where gradients are large:

    M <- 0.95 M + 0.05 g g;  lambda = lambda_0 / sqrt(M + 1e-7)
"""

from common import cluster, copies, data, models, session  # import first: quiet start-up
import tensorflow.compat.v1 as tf

# Flags and their defaults (--help lists them all). --steps: total updates by all workers.
DEFAULTS = {"workers": 2, "ps": 1, "steps": 2000, "learning_rate": 0.2,
            "dc_lambda": 0.04, "adaptive": False}  # fmt: skip

# 1. Who am I? Flags or TF_CONFIG give this worker's index and the addresses of all tasks.
tf.disable_eager_execution()  # use graphs and sessions; the main README says why
task = cluster.Task.from_flags("worker", DEFAULTS)
flags = task.flags

# 2. This task's server: the tasks talk to each other through their servers.
server = tf.train.Server(task.cluster, task.job, task.index, config=task.config)

# 3. Parameters w~ and global_step, which counts their updates: on the ps, shared by all workers.
with tf.device(tf.train.replica_device_setter(cluster=task.cluster)):
    params = models.create(flags)  # weights, biases, weights, ...
    global_step = tf.train.get_or_create_global_step()


def beside(p):  # M: the moving mean of g g, on the parameter's ps
    with tf.device(p.device):
        return tf.Variable(tf.zeros(p.shape), trainable=False, name=f"{p.op.name}/mean_square")


squares = [beside(p) for p in params] if flags.adaptive else [None] * len(params)

with tf.device(task.device):  # this worker's GPU, or its CPU
    # 4. Worker k of n gets examples k, k + n, ...; next_batch() adds ops that draw a new batch.
    next_batch = data.batches(flags, worker=task.index, workers=flags.workers)

    # 5. The scheme. Staleness: update.number - pull.count, both on the ps
    pull = copies.pull(params, global_step)  # w <- w~
    loss, grads = models.gradients(flags, pull.w, next_batch())
    push = copies.send(grads, params)  # the gradients travel to the ps


# Push: w~ <- w~ - eta (g + lambda g g (w~ - w_pulled)), on the ps, once the gradients have arrived.
# global_step counts it first (update.number: the count before), then it is applied. After --steps
# updates, sess.run(step) raises OutOfRangeError instead, which ends the loop.
def strength(M, g):  # lambda. As in HogWild, two pushes at once may overwrite each other's M.
    if M is None:
        return flags.dc_lambda
    return flags.dc_lambda / tf.sqrt(M.assign(0.95 * M + 0.05 * g * g) + 1e-7)


def compensated(p, g, pulled, M):
    return flags.learning_rate * (g + strength(M, g) * g * g * (p - pulled))


with session.next_update(global_step, flags, push) as update:  # pull.on_ps: w_pulled
    sent = zip(params, push.values, pull.on_ps, squares)
    step = tf.group(*[p.assign_sub(compensated(p, g, pulled, M)) for p, g, pulled, M in sent])

# 6. The monitored session: worker 0 initialises w~. At the start and the end, each waits for all.
me = session.Replica(step, loss, pull, push, update)  # what to run, and what to measure
with session.training(task, server, params, [me]) as sess:
    while not sess.should_stop():  # 7. The loop
        sess.run(step)  # one step: pull and fresh batch, in any order; gradient; push
