"""Several GPUs of one machine from one process: a tower for each, averaged gradients.

Again and again, in one step of one session:

    tower k, on a GPU of its own:
        g_k = gradient of the mean loss on a fresh mini-batch of its own shard, at w
    w <- w - eta / n sum_k g_k
"""

from common import cluster, data, models, session  # ours; first: quietens TensorFlow
import tensorflow.compat.v1 as tf

# Of the flags; "workers": None is one for each GPU; "steps" counts the updates.
DEFAULTS = {
    "workers": None,
    "ps": 0,
    "steps": 2000,
    "learning_rate": 0.2,
    "mode": "towers",
    "memory_fraction": None,
}

# 1. Who am I? Without a cluster: the only process.
tf.disable_eager_execution()  # graphs and sessions; the README says why
task = cluster.Task.from_flags("worker", DEFAULTS)
flags = task.flags

# 2. The towers' devices: all GPUs, or as many logical CPU devices.
gpus = tf.config.list_physical_devices("GPU")
if gpus:
    devices = [f"/gpu:{k % len(gpus)}" for k in range(flags.workers)]
    task.config.gpu_options.per_process_gpu_memory_fraction = flags.memory_fraction or 0
    task.config.gpu_options.allow_growth = not flags.memory_fraction
else:
    devices = [f"/cpu:{k}" for k in range(flags.workers)]
    task.config.device_count["CPU"] = flags.workers
print("towers on", *devices, flush=True)

# 3. The parameters, and the count of their updates, in the machine's memory.
with tf.device("/cpu:0"):
    params = models.create(flags)
    global_step = tf.train.get_or_create_global_step()
    pulled_at = session.updates_so_far(global_step)


def tower(k):
    """Loss and gradient of tower k, computed on its device."""
    with tf.device(devices[k]):
        # 4. This tower's shard of the data: examples k, k + n, k + 2n, ... for tower k of n.
        next_batch = data.batches(flags, worker=k, workers=flags.workers)

        # 5. The scheme: a copy of the parameters, and the gradient there
        w = [tf.identity(p.read_value()) for p in params]
        return models.gradients(flags.model, w, next_batch())


losses, gradients = zip(*[tower(k) for k in range(flags.workers)])

# w <- w - eta / n sum_k g_k
with tf.device("/cpu:0"):
    update = [tf.add_n(of_all) / flags.workers for of_all in zip(*gradients)]  # 1/n sum_k g_k
    number = session.next_update(global_step, flags, after=[pulled_at, *update])
    optimizer = tf.train.GradientDescentOptimizer(flags.learning_rate)
    with tf.control_dependencies([number]):
        step = optimizer.apply_gradients(zip(update, params))

# 6. The session, with TensorFlow's standard hooks.
first, *others = [(loss, number, pulled_at, [g]) for loss, g in zip(losses, gradients)]
with session.training(task, None, params, step, first, towers=others) as sess:
    # 7. The loop: every step computes all towers anew, each with a fresh batch; while it takes
    # less than 10 ms, a run makes several of them (common/chain.py).
    while not sess.should_stop():
        sess.run(step)
