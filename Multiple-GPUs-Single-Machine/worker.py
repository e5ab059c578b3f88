"""Several GPUs on one machine, asynchronously: a worker process per GPU, as in HogWild!.

Each worker, on its own GPU, repeats this, without waiting for the others:

    pull   w <- w~
           g = gradient of the mean loss on a fresh mini-batch of its own shard, at w
    push   w~ <- w~ - eta g

--mode synchronous runs synchronous.py instead; --mode towers runs towers.py.
"""

from common import cluster, copies, data, models, session  # import first: quiet start-up
import tensorflow.compat.v1 as tf

# Flags and their defaults (--help lists them all). "workers": None means one per GPU.
DEFAULTS = {
    "workers": None,
    "ps": 1,
    "steps": 2000,
    "learning_rate": 0.2,
    "mode": ("asynchronous", "synchronous", "towers"),
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

with tf.device(task.device):  # this worker's GPU, or its CPU
    # 4. Worker k of n gets examples k, k + n, ...; next_batch() adds ops that draw a new batch.
    next_batch = data.batches(flags, worker=task.index, workers=flags.workers)

    # 5. The scheme. Staleness: update.number - pull.count, both on the ps
    pull = copies.pull(params, global_step)  # w <- w~
    loss, grads = models.gradients(flags, pull.w, next_batch())
    push = copies.send(grads, params)  # the gradients travel to the ps

# Push: w~ <- w~ - eta g, on the ps, once the gradients have arrived. global_step counts it first
# (update.number: the count before). After --steps updates, OutOfRangeError ends the loop instead.
with session.next_update(global_step, flags, push) as update:
    optimizer = tf.train.GradientDescentOptimizer(flags.learning_rate)  # schedule by update.number
    step = optimizer.apply_gradients(zip(push.values, params))

# 6. The monitored session: worker 0 initialises w~. At the start and the end, each waits for all.
me = session.Replica(step, loss, pull, push, update)  # what to run, and what to measure
with session.training(task, server, params, [me]) as sess:
    while not sess.should_stop():  # 7. The loop
        sess.run(step)  # one step: pull and fresh batch, in any order; gradient; push
