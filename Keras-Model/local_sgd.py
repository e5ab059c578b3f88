"""A Keras network, trained by Local SGD: `--scheme local_sgd`.

w~ are its parameters, s~ its state: the moving statistics of batch normalisation. Each worker
repeats:

    wait   for a token: the count of updates so far; if several are queued, take the newest
    pull   w <- w~,  s <- s~
    local  T times, each on a fresh mini-batch:  g_t = gradient at w, with dropout,
           w <- w - eta g_t,  s <- the state after that batch, from s
    push   w_k = w and s_k = s,  together with the token

A thread of the chief (worker 0) runs round after round: it gathers the parameters and states of all
n workers, then updates, all on the ps:

    w~ <- 1/n sum_k w_k,  s~ <- 1/n sum_k s_k,  and every worker gets a token, the new count
"""

import functools

from common import cluster, copies, data, session  # import first: quiet start-up
from common.training.rounds import Rounds
import tensorflow.compat.v1 as tf

import network  # in this folder

# Flags and their defaults (--help lists them all). --steps: updates, one per round.
DEFAULTS = {
    "workers": 2, "ps": 1, "steps": 600, "window": 10, "learning_rate": 0.1,
    "model": "keras_net", "bn_momentum": 0.9, "dropout": 0.2,  # network.py
    "scheme": ("local_sgd",),
}  # fmt: skip

# 1. Who am I? Flags or TF_CONFIG give this worker's index and the addresses of all tasks.
tf.disable_eager_execution()  # use graphs and sessions; the main README says why
task = cluster.Task.from_flags("worker", DEFAULTS)
flags = task.flags

# 2. This task's server: the tasks talk to each other through their servers.
server = tf.train.Server(task.cluster, task.job, task.index, config=task.config)

# 3. w~, s~ and global_step, which counts their updates: on the ps, shared by all workers.
with tf.device(tf.train.replica_device_setter(cluster=task.cluster)):
    net = network.create(flags)
    params, state = network.variables(net)  # of w~ and of s~
    global_step = tf.train.get_or_create_global_step()

# Queues on the ps: workers wait there for tokens, and the chief's thread for what they push.
rounds = Rounds(task, [*params, *state], global_step)

with tf.device(task.device):  # this worker's GPU, or its CPU
    # 4. Worker k of n gets examples k, k + n, ...; next_batch() adds ops that draw a new batch.
    next_batch = data.batches(flags, worker=task.index, workers=flags.workers)

    # 5. The scheme. token.number: the count of updates so far, on the ps
    token = rounds.wait()
    pull = copies.pull([*params, *state], global_step, after=token.number)  # w <- w~, s <- s~

    # T local steps, g_t of a fresh batch at the local w: w <- w - eta g_t
    def local_step(t, loss, w, s):
        loss, grads, s = network.gradients(net, w, s, next_batch())
        w = [p - flags.learning_rate * g for p, g in zip(w, grads)]
        return t + 1, loss, w, s

    def more(t, *_):
        return t < flags.window

    start = 0, 0.0, *network.split(net, pull.w)
    _, loss, w, s = tf.while_loop(more, local_step, start, parallel_iterations=1)
    push = copies.send([*w, *s], [*params, *state])  # the local values travel to the ps
    step = rounds.push(push, token)

# The update: w~ <- 1/n sum_k w_k, s~ <- 1/n sum_k s_k, on the ps.
# global_step counts it first (update.number: the count before), then it is applied. Then release
# gives each worker the new count as its next token; after --steps updates it closes the queues of
# the tokens instead, which ends the loops.
# All workers build this part of the graph, but only the chief's thread runs it, once per round.
gathered = rounds.gather(flags.workers)  # gathered.values: sum_k w_k, sum_k s_k
with session.next_update(global_step, flags, gathered) as update:
    means = [total / flags.workers for total in gathered.values]
    applied = tf.group(*[p.assign(mean) for p, mean in zip([*params, *state], means)])
rounds.release(applied, update, gathered)

# 6. The monitored session: worker 0 initialises w~, starts its thread, and gives each worker a
# first token. At the start and the end, each waits for all others.
me = session.Replica(step, loss, pull, push, token)  # what to run, and what to measure
with session.training(
    task, server, [*params, *state], [me], rounds=rounds,
    evaluate=functools.partial(network.evaluate, net),
) as sess:  # fmt: skip
    while not sess.should_stop():  # 7. The loop
        sess.run(step)  # one step: token, pull, T local steps, push
