"""Several GPUs on one machine, synchronously: a worker process per GPU, as in Synchronous-SGD.

Each worker, on its own GPU, repeats:

    wait   for a token: the count of updates so far; if several are queued, take the newest
    pull   w <- w~
           g_k = gradient of the mean loss on a fresh mini-batch of its own shard, at w
    push   g_k, together with the token

A thread of the chief (worker 0) runs round after round: it gathers the gradients of all n
workers, then updates, all on the ps:

    w~ <- w~ - eta / n sum_k g_k,  and every worker gets a token, the new count
"""

from common import cluster, copies, data, models, session  # import first: quiet start-up
from common.training.rounds import Rounds
import tensorflow.compat.v1 as tf

# Flags and their defaults (--help lists them all). "workers": None means one per GPU.
DEFAULTS = {
    "workers": None,
    "ps": 1,
    "steps": 2000,
    "learning_rate": 0.2,
    "mode": ("synchronous",),
    "memory_fraction": None,
}

# 1. Who am I? Flags or TF_CONFIG give this worker's index and the addresses of all tasks.
tf.disable_eager_execution()  # use graphs and sessions; the main README says why
task = cluster.Task.from_flags("worker", DEFAULTS)
flags = task.flags

# 2. One GPU for this process, if there is one; it sees no other. Processes may share a GPU, so none
# may take all of its memory at once, as TensorFlow does by default.
gpus = tf.config.list_physical_devices("GPU")
if gpus:
    options = task.config.gpu_options
    options.visible_device_list = str(task.index % len(gpus))
    options.per_process_gpu_memory_fraction = flags.memory_fraction or 0
    options.allow_growth = not flags.memory_fraction
print(task.name, "computes on", gpus[task.index % len(gpus)].name if gpus else "the CPU")

# This task's server: the tasks talk to each other through their servers.
server = tf.train.Server(task.cluster, task.job, task.index, config=task.config)

# 3. Parameters w~ and global_step, which counts their updates: on the ps, shared by all workers.
with tf.device(tf.train.replica_device_setter(cluster=task.cluster)):
    params = models.create(flags)  # weights, biases, weights, ...
    global_step = tf.train.get_or_create_global_step()

# Queues on the ps: workers wait there for tokens, and the chief's thread for gradients.
rounds = Rounds(task, params, global_step)

with tf.device(task.device):  # this worker's GPU, or its CPU
    # 4. Worker k of n gets examples k, k + n, ...; next_batch() adds ops that draw a new batch.
    next_batch = data.batches(flags, worker=task.index, workers=flags.workers)

    # 5. The scheme. token.number: the count of updates so far, on the ps
    token = rounds.wait()
    pull = copies.pull(params, global_step, after=token.number)  # w <- w~
    loss, grads = models.gradients(flags, pull.w, next_batch())
    push = copies.send(grads, params)  # the gradients travel to the ps
    step = rounds.push(push, token)

# The update: w~ <- w~ - eta / n sum_k g_k, on the ps.
# global_step counts it first (update.number: the count before), then it is applied. Then release
# gives each worker the new count as its next token; after --steps updates it closes the queues of
# the tokens instead, which ends the loops.
# All workers build this part of the graph, but only the chief's thread runs it, once per round.
gathered = rounds.gather(flags.workers)  # gathered.values: sum_k g_k
with session.next_update(global_step, flags, gathered) as update:
    means = [total / flags.workers for total in gathered.values]
    optimizer = tf.train.GradientDescentOptimizer(flags.learning_rate)  # schedule by update.number
    applied = optimizer.apply_gradients(zip(means, params))
rounds.release(applied, update, gathered)

# 6. The monitored session: worker 0 initialises w~, starts its thread, and gives each worker a
# first token. At the start and the end, each waits for all others.
me = session.Replica(step, loss, pull, push, token)  # what to run, and what to measure
with session.training(task, server, params, [me], rounds=rounds) as sess:
    while not sess.should_stop():  # 7. The loop
        sess.run(step)  # one step: token, pull; a batch, before or after; gradient; push
