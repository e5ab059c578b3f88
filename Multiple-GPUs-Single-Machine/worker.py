"""Several GPUs of one machine, asynchronously: a worker process for each, HogWild! between them.

Every worker, on a GPU of its own, waiting for nobody:

    pull   w <- w~
           g = gradient of the mean loss on a fresh mini-batch of its own shard, at w
    push   w~ <- w~ - eta g

--mode synchronous runs synchronous.py instead, --mode towers runs towers.py.
"""

from common import cluster, data, models, session  # ours; first: quietens TensorFlow
from common import copies
import tensorflow.compat.v1 as tf

# Of the flags; "workers": None is one for each GPU; "steps" counts the updates of all.
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
on_ps = tf.train.replica_device_setter(cluster=task.cluster)
with tf.device(on_ps):
    params = models.create(flags)
    global_step = tf.train.get_or_create_global_step()

with tf.device(task.device):
    # 4. This worker's shard of the data: examples k, k + n, k + 2n, ... for worker k of n.
    next_batch = data.batches(flags, worker=task.index, workers=task.workers)

    # 5. The scheme. Pull: w <- w~
    pulled_at = session.updates_so_far(global_step)  # to measure the staleness
    w = copies.pull(params, after=pulled_at)
    loss, grads = models.gradients(flags.model, w, next_batch())
    pushed = copies.push(grads, params)

# Push: w~ <- w~ - eta g, whenever it arrives; nobody waits.
optimizer = tf.train.GradientDescentOptimizer(flags.learning_rate, use_locking=False)
# Count first: next_update takes the next number of global_step and ends the session after --steps,
# so that no update too many is applied. Hence no global_step in apply_gradients.
number = session.next_update(global_step, flags, after=[pulled_at, *pushed])
with tf.control_dependencies([number]):
    step = optimizer.apply_gradients(zip(pushed, params))

# 6. The session, with TensorFlow's standard hooks.
measured = loss, number, pulled_at, (w, grads)
with session.training(task, server, params, step, measured) as sess:
    # 7. The loop: every step computes the whole graph anew, with a fresh batch and a fresh pull;
    # while it takes less than 10 ms, a run makes several of them (common/chain.py).
    while not sess.should_stop():
        sess.run(step)
