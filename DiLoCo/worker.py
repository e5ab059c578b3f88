"""DiLoCo: workers train alone for T steps of AdamW, then all take a step of Nesterov momentum.

Each worker repeats:

    wait   for a token: the count of updates so far; if several are queued, take the newest
    pull   w <- w~
    local  T times, each on a fresh mini-batch:  g = gradient at w,  i <- i + 1,
           m <- b1 m + (1 - b1) g,  v <- b2 v + (1 - b2) g g,
           w <- w - eta (m^ / (sqrt(v^) + eps) + decay w),
           with m^ = m / (1 - b1^i), v^ = v / (1 - b2^i);  m, v and i are kept from round to round
    push   w_k = w,  together with the token

A thread of the chief (worker 0) runs round after round: it gathers the parameters of the first
n - b workers (n workers, b of them spare: --backup_workers), then updates, all on the ps:

    D = w~ - 1 / (n - b) sum_k w_k:  how far the workers have moved; it serves as a gradient
    u <- mu u + D,  w~ <- w~ - rate (D + mu u),  and every worker gets a token, the new count

(Douillard et al. 2023, arXiv 2311.08105, Algorithm 1.) With --outer momentum it is SlowMo (Wang et
al. 2019, arXiv 1910.00643):  u <- mu u + D / eta,  w~ <- w~ - rate eta u.
"""

from common import cluster, copies, data, models, session  # import first: quiet start-up
from common.training.rounds import Rounds
import tensorflow.compat.v1 as tf

# Flags and their defaults (--help lists them all). --steps: updates, one per round.
DEFAULTS = {"workers": 2, "ps": 1, "steps": 100, "window": 20, "learning_rate": 0.002,
            "inner": "adamw", "inner_beta1": 0.9, "inner_beta2": 0.99, "inner_epsilon": 1e-8,
            "weight_decay": 0.1, "outer": "nesterov", "outer_rate": 0.7, "outer_momentum": 0.9,
            "backup_workers": 0}  # fmt: skip

# 1. Who am I? Flags or TF_CONFIG give this worker's index and the addresses of all tasks.
tf.disable_eager_execution()  # use graphs and sessions; the main README says why
task = cluster.Task.from_flags("worker", DEFAULTS)
flags = task.flags

# 2. This task's server: the tasks talk to each other through their servers.
server = tf.train.Server(task.cluster, task.job, task.index, config=task.config)


# 3. Parameters w~ and global_step, which counts their updates: on the ps, shared by all workers.
# Beside each parameter, its momentum u.
def beside(p):
    with tf.device(p.device):
        return tf.Variable(tf.zeros(p.shape), trainable=False, name=f"{p.op.name}/u")


with tf.device(tf.train.replica_device_setter(cluster=task.cluster)):
    params = models.create(flags)  # weights, biases, weights, ...
    global_step = tf.train.get_or_create_global_step()
momentum = [beside(p) for p in params]

# Queues on the ps: workers wait there for tokens, and the chief's thread for parameters.
rounds = Rounds(task, params, global_step)

with tf.device(task.device):  # this worker's GPU, or its CPU
    # 4. Worker k of n gets examples k, k + n, ...; next_batch() adds ops that draw a new batch.
    next_batch = data.batches(flags, worker=task.index, workers=flags.workers)

    # 5. The scheme. token.number: the count of updates so far, on the ps
    token = rounds.wait()
    pull = copies.pull(params, global_step, after=token.number)  # w <- w~

    # This worker's own moments m and v, and i, how many steps they contain: kept between rounds.
    own = [*copies.local(params), *copies.local(params), *copies.local([global_step])]
    b1, b2 = flags.inner_beta1, flags.inner_beta2

    # m <- b1 m + (1 - b1) g, v <- b2 v + (1 - b2) g g,
    # w <- w - eta (m^ / (sqrt(v^) + eps) + decay w)
    def adamw(w, g, m, v, i):
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        unbiased_m, unbiased_v = m / (1 - b1**i), v / (1 - b2**i)  # m^, v^
        direction = unbiased_m / (tf.sqrt(unbiased_v) + flags.inner_epsilon)
        return w - flags.learning_rate * (direction + flags.weight_decay * w), m, v

    # T local steps, g of a fresh batch at the local w; with --inner sgd: w <- w - eta g
    def local_step(t, loss, w, m, v, i):
        loss, grads = models.gradients(flags, w, next_batch())
        if flags.inner == "sgd":
            return t + 1, loss, [p - flags.learning_rate * g for p, g in zip(w, grads)], m, v, i
        power = tf.cast(i + 1, tf.float32)
        w, m, v = zip(*[adamw(*each, power) for each in zip(w, grads, m, v)])
        return t + 1, loss, list(w), list(m), list(v), i + 1

    def more(t, *_):
        return t < flags.window

    n = len(params)
    kept = [a.read_value() for a in own]
    start = 0, 0.0, pull.w, kept[:n], kept[n : 2 * n], kept[-1]
    _, loss, w, m, v, i = tf.while_loop(more, local_step, start, parallel_iterations=1)
    keep = [a.assign(value) for a, value in zip(own, [*m, *v, i])]
    push = copies.send(w, params)  # the local parameters travel to the ps
    pushed = rounds.push(push, token)
step = tf.group(pushed, *keep)

# The update, on the ps: D = w~ - 1 / (n - b) sum_k w_k, u <- mu u + D, w~ <- w~ - rate (D + mu u).
# global_step counts it first (update.number: the count before), then it is applied. Then release
# gives each worker the new count as its next token; after --steps updates it closes the queues of
# the tokens instead, which ends the loops.
# All workers build this part of the graph, but only the chief's thread runs it, once per round.
needed = flags.workers - flags.backup_workers
gathered = rounds.gather(needed)  # gathered.values: sum_k w_k
rate, mu, eta = flags.outer_rate, flags.outer_momentum, flags.learning_rate


def nesterov(p, u, total):
    moved = p - total / needed  # D
    new = mu * u + moved
    return [u.assign(new), p.assign_sub(rate * (moved + mu * new))]


def slowmo(p, u, total):  # u <- mu u + D / eta, w~ <- w~ - rate eta u
    new = mu * u + (p - total / needed) / eta
    return [u.assign(new), p.assign_sub(rate * eta * new)]


with session.next_update(global_step, flags, gathered) as update:
    outer = nesterov if flags.outer == "nesterov" else slowmo
    applied = tf.group(*[outer(*each) for each in zip(params, momentum, gathered.values)])
rounds.release(applied, update, gathered)

# 6. The monitored session: worker 0 initialises w~, starts its thread, and gives each worker a
# first token. At the start and the end, each waits for all others.
me = session.Replica(step, loss, pull, push, token)  # what to run, and what to measure
with session.training(task, server, params, [me], rounds=rounds) as sess:
    while not sess.should_stop():  # 7. The loop
        sess.run(step)  # one step: token, pull, T local steps, push
