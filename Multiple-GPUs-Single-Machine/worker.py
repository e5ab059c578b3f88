"""Several GPUs of one machine, asynchronously: a worker process for each, HogWild! between them.

Each worker, on its own GPU, repeats and waits for nobody:

    pull   w <- w~
           g = gradient of the mean loss on a fresh mini-batch of its own shard, at w
    push   w~ <- w~ - eta g

--mode synchronous runs synchronous.py instead, --mode towers runs towers.py.
"""

from common import cluster, copies, data, models, session  # import first: quiet start-up
import tensorflow.compat.v1 as tf

# Defaults of this example's flags; "workers": None is one for each GPU; --steps counts updates.
DEFAULTS = {
    "workers": None,
    "ps": 1,
    "steps": 2000,
    "learning_rate": 0.2,
    "mode": "asynchronous",
    "memory_fraction": None,
}

# 1. Who am I? The flags, or TF_CONFIG, say which task of which cluster.
tf.disable_eager_execution()  # graphs and sessions; the README says why
task = cluster.Task.from_flags("worker", DEFAULTS)
flags = task.flags

# 2. One GPU for this process, if there is any: it sees no other. A second process on the same GPU
# shares it, so neither may take all of its memory at once, as TensorFlow would.
gpus = tf.config.list_physical_devices("GPU")
if gpus:
    options = task.config.gpu_options
    options.visible_device_list = str(task.index % len(gpus))
    options.per_process_gpu_memory_fraction = flags.memory_fraction or 0
    options.allow_growth = not flags.memory_fraction
print(task.name, "computes on", gpus[task.index % len(gpus)].name if gpus else "the CPU")

# This task's server: the others reach this process through it, and it reaches them.
server = tf.train.Server(task.cluster, task.job, task.index, config=task.config)

# 3. The global parameters w~, and the count of their updates, live on the parameter servers.
with tf.device(tf.train.replica_device_setter(cluster=task.cluster)):
    params = models.create(flags)
    global_step = tf.train.get_or_create_global_step()

with tf.device(task.device):
    # 4. This worker's shard of the data: examples k, k + n, k + 2n, ... for worker k of n.
    next_batch = data.batches(flags, worker=task.index, workers=flags.workers)

    # 5. The scheme. Pull: w <- w~, which holds the first pulled_at updates.
    w, pulled_at = copies.pull(params, global_step)
    loss, grads = models.gradients(flags.model, w, next_batch())
    arrived = copies.push(grads, params)

# Push: w~ <- w~ - eta g, on arrival. The ps numbers the updates 0, 1, ... and stops after --steps.
optimizer = tf.train.GradientDescentOptimizer(flags.learning_rate)
with session.next_update(global_step, flags, after=arrived) as number:
    step = optimizer.apply_gradients(zip(arrived, params))

# 6. The session: TensorFlow's monitored session with its standard hooks.
with session.training(task, server, step, loss=loss, number=number, pulled_at=pulled_at) as sess:
    while not sess.should_stop():  # 7. The loop
        sess.run(step)  # the whole graph once: a fresh pull, a fresh batch
