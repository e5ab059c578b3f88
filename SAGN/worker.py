"""SAGN: synchronous accumulated gradient normalization: AGN whose workers wait for each other.

Each worker repeats:

    wait   for a token: the count of updates so far; if several are queued, take the newest
    pull   w <- w~
    local  T times, each on a fresh mini-batch:  g_t = gradient at w,  w <- w - eta g_t
    push   the mean  a_k = (1/T) sum g_t,  together with the token

A thread of the chief (worker 0) runs round after round: it gathers the n means, one from each
worker, then updates:

    w~ <- w~ - eta / n sum_k a_k,  and every worker gets a token, the new count
"""

from common import cluster, copies, data, models, session  # import first: quiet start-up
from common.training.rounds import Rounds
import tensorflow.compat.v1 as tf

# Flags and their defaults (--help lists them all). --steps: updates, one per round of all workers.
DEFAULTS = {"workers": 2, "ps": 1, "steps": 200, "window": 10, "learning_rate": 0.4}

# 1. Who am I? Flags or TF_CONFIG give this worker's index and the addresses of all tasks.
tf.disable_eager_execution()  # use graphs and sessions; the main README says why
task = cluster.Task.from_flags("worker", DEFAULTS)
flags = task.flags

# 2. This task's server: the tasks talk to each other through their servers.
server = tf.train.Server(task.cluster, task.job, task.index, config=task.config)

# 3. Parameters w~ and global_step, which counts their updates: on the ps, shared by all workers.
with tf.device(tf.train.replica_device_setter(cluster=task.cluster)):
    params = models.create(flags)
    global_step = tf.train.get_or_create_global_step()

# Queues on the ps: workers wait there for tokens, and the chief's thread for their means.
rounds = Rounds(task, params, global_step)

with tf.device(task.device):
    # 4. Worker k of n gets examples k, k + n, ...; next_batch() adds ops that draw a new batch.
    next_batch = data.batches(flags, worker=task.index, workers=flags.workers)

    # 5. The scheme. Wait for a token: the count of updates so far. Then pull: w <- w~
    token = rounds.wait()
    pulled, _ = copies.pull(params, global_step, after=token)  # _: the token again

    # T local steps, g_t of a fresh batch at the local w: w <- w - eta g_t, total <- total + g_t
    def local_step(t, loss, w, total):
        loss, grads = models.gradients(flags.model, w, next_batch())
        w = [p - flags.learning_rate * g for p, g in zip(w, grads)]
        total = [s + g for s, g in zip(total, grads)]
        return t + 1, loss, w, total

    def more(t, *_):
        return t < flags.window

    start = 0, 0.0, pulled, [tf.zeros_like(p) for p in pulled]
    # The loss is that of the last batch; the local w is dropped.
    _, loss, _, total = tf.while_loop(more, local_step, start, parallel_iterations=1)
    mean = [s / flags.window for s in total]  # a_k = (1/T) sum g_t
    step = rounds.push(mean, token)

# The update: w~ <- w~ - eta / n sum_k a_k
# First, next_update adds 1 to global_step (number: the value before). Finally, release gives each
# worker the new count, number + 1, as its next token; at --steps it gives none, and the loops end.
# All workers build this part of the graph, but only the chief's thread runs it, once per round.
total = rounds.gather(flags.workers)  # sum_k a_k
optimizer = tf.train.GradientDescentOptimizer(flags.learning_rate / flags.workers)
with session.next_update(global_step, flags, after=total) as number:
    update = optimizer.apply_gradients(zip(total, params))
rounds.release(update, number)

# 6. The monitored session: worker 0 initialises w~, hands out the first tokens and starts its
# thread; the loss and token of each step go to the worker's events file.
with session.training(task, server, step, loss=loss, token=token, rounds=rounds) as sess:
    while not sess.should_stop():  # 7. The loop
        sess.run(step)  # one step: token, pull, T fresh batches, push
