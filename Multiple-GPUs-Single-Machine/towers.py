"""Several GPUs on one machine in one process: a tower per GPU, averaged gradients.

The process repeats this, each time in a single step of its session:

    tower k, on its own GPU:
        g_k = gradient of the mean loss on a fresh mini-batch of its own shard, at w
    w <- w - eta / n sum_k g_k
"""

from common import cluster, data, models, session  # import first: quiet start-up
import tensorflow.compat.v1 as tf

# Flags and their defaults (--help lists them all). "workers": None means one per GPU.
DEFAULTS = {
    "workers": None,
    "ps": 0,
    "steps": 2000,
    "learning_rate": 0.2,
    "mode": ("towers",),
    "memory_fraction": None,
}

# 1. Who am I? There is no cluster: this is the only process.
tf.disable_eager_execution()  # use graphs and sessions; the main README says why
task = cluster.Task.from_flags("worker", DEFAULTS)
flags = task.flags

# 2. The towers' devices: the GPUs in turn, or a logical CPU device for each tower.
gpus = tf.config.list_physical_devices("GPU")
if gpus:
    devices = [f"/gpu:{k % len(gpus)}" for k in range(flags.workers)]
    task.config.gpu_options.per_process_gpu_memory_fraction = flags.memory_fraction or 0
    task.config.gpu_options.allow_growth = not flags.memory_fraction
else:
    devices = [f"/cpu:{k}" for k in range(flags.workers)]
    task.config.device_count["CPU"] = flags.workers
print("towers on", *devices, flush=True)

# 3. The parameters, and global_step, which counts their updates: in main memory.
with tf.device("/cpu:0"):
    params = models.create(flags)  # weights, biases, weights, ...
    global_step = tf.train.get_or_create_global_step()


def tower(k):
    """The loss and gradient of tower k, computed on its device."""
    with tf.device(devices[k]):
        # 4. This tower's shard of the data: examples k, k + n, k + 2n, ... for tower k of n.
        next_batch = data.batches(flags, worker=k, workers=flags.workers)

        # 5. The scheme, on tower k's device: copy the parameters, then compute the gradient
        w = [tf.identity(p.read_value()) for p in params]
        return models.gradients(flags, w, next_batch())


losses, gradients = zip(*[tower(k) for k in range(flags.workers)])

# w <- w - eta / n sum_k g_k, once the gradients of all towers are ready.
# global_step counts it first (update.number: the count before), then it is applied. After --steps
# updates, sess.run(step) raises OutOfRangeError instead, which ends the loop.
with session.next_update(global_step, flags, *gradients) as update:
    means = [tf.add_n(g) / flags.workers for g in zip(*gradients)]
    optimizer = tf.train.GradientDescentOptimizer(flags.learning_rate)  # schedule by update.number
    step = optimizer.apply_gradients(zip(means, params))

# 6. The monitored session: it initialises w; each step goes to every tower's events file.
towers = [session.Replica(step, loss, update=update) for loss in losses]
with session.training(task, None, params, towers) as sess:
    while not sess.should_stop():  # 7. The loop
        sess.run(step)  # one step: all towers, each with a fresh batch
