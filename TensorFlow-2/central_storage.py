"""CentralStorageStrategy: synchronous SGD in one process, with the parameters w on the CPU.

The process repeats this:

    replica k, on its device:
        g_k = gradient of the mean loss on a fresh mini-batch of its own shard, at w
    on the CPU   w <- w - eta / n sum_k g_k
"""

from common import cluster, data, models  # import first: quiet start-up
import tensorflow as tf

import problem  # in this folder
from common.graph.clock import now

# Flags and their defaults (--help lists them all). --steps: updates; each averages all replicas.
DEFAULTS = {
    "workers": 2,
    "ps": 0,
    "steps": 1000,
    "learning_rate": 0.2,
    "model": ("mlp", "linear", "cnn"),
    "strategy": ("central_storage",),
}

# 1. Who am I? There is no cluster: this is the only process.
task = cluster.Task.from_flags("worker", DEFAULTS)
flags = task.flags

# 2. The strategy, on --workers GPUs if there are enough, else on logical CPU devices.
kind = "GPU" if len(tf.config.list_physical_devices("GPU")) >= flags.workers else "CPU"
if kind == "CPU":
    parts = [tf.config.LogicalDeviceConfiguration()] * flags.workers
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], parts)
devices = [f"/{kind.lower()}:{k}" for k in range(flags.workers)]
print("replicas on", *devices, flush=True)
strategy = tf.distribute.experimental.CentralStorageStrategy(devices, parameter_device="/cpu:0")

# 3. Parameters w: on the CPU.
with strategy.scope():
    params = models.create(flags)
    global_step = tf.Variable(0, dtype=tf.int64, trainable=False)

# 4. Replica k of n gets examples k, k + n, ...: the strategy deals the elements out in turn.
train = data.load(flags, "train")


def in_turn(_):
    shards = [problem.batches(flags, train, k) for k in range(flags.workers)]
    return tf.data.Dataset.choose_from_datasets(
        shards, tf.data.Dataset.range(flags.workers).repeat(), stop_on_empty_dataset=False
    )


batches = iter(strategy.distribute_datasets_from_function(in_turn))


# 5. The scheme: what each replica does in a step
def replica(batch):
    began = now(tf.nest.flatten(batch))
    with tf.control_dependencies([began]):
        w = [tf.identity(p.read_value()) for p in params]
    loss, grads = models.gradients(flags, w, batch)
    computed = now(grads)
    with tf.control_dependencies([computed]):
        grads = [tf.identity(g) for g in grads]
    context = tf.distribute.get_replica_context()
    mean = context.all_reduce(tf.distribute.ReduceOp.MEAN, grads)
    # Record.note's arguments from loss on; pulled = began: copying w counts as computing
    report = tf.stack([tf.cast(loss, tf.float64), began, began, computed, now(mean)])
    return mean, report


# One update: w <- w - eta g, where g is the mean
def update(p, g):
    return p.assign_sub(flags.learning_rate * g)


@tf.function(autograph=False)
def steps(count):
    reports = []
    for _ in range(count):
        mean, report = strategy.run(replica, args=(next(batches),))
        for p, g in zip(params, mean):
            strategy.extended.update(p, update, args=(g,))
        global_step.assign_add(1)
        reports.append(strategy.experimental_local_results(report))
    return reports


# 6. Events, evaluations and checkpoints; restores the newest checkpoint, if there is one
record = problem.Record(task, params, global_step, replicas=range(flags.workers))

# 7. The loop, until --steps updates are done or --target_accuracy is reached
made = int(global_step.numpy())
while made < flags.steps and not record.save_and_measure():
    for reports in steps(min(flags.steps_per_execution, flags.steps - made)):
        for k, report in enumerate(reports):
            record.note(k, made, *report.numpy())
        made += 1
record.finish()
