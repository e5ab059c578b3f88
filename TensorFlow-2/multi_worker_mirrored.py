"""MultiWorkerMirroredStrategy: synchronous SGD without a parameter server. Each worker has a copy
of the parameters w; all copies are equal.

Each worker repeats this:

    g_k = gradient of the mean loss on a fresh mini-batch of its own shard, at w
    all-reduce   g = 1/n sum_k g_k, the same on every worker
    w <- w - eta g
"""

from common import cluster, data, models  # import first: quiet start-up
import contextlib

import tensorflow as tf

import problem  # in this folder
from common.graph.clock import now

# Flags and their defaults (--help lists them all). --steps: updates, each from all workers.
DEFAULTS = {
    "workers": 2,
    "ps": None,
    "steps": 1000,
    "learning_rate": 0.2,
    "model": ("mlp", "linear", "cnn"),
    "strategy": ("multi_worker_mirrored",),
}

# 1. Who am I? Flags or TF_CONFIG give this worker's index and the addresses of all workers.
task = cluster.Task.from_flags("worker", DEFAULTS)
flags = task.flags
problem.start_again_after_a_loss(task)

# 2. The strategy. It starts this worker's server and waits for all workers.
resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
    task.cluster, task_type="worker", task_id=task.index, rpc_layer="grpc"
)
# One GPU per worker on this machine, if there are enough; else all workers use the CPU.
neighbours = [a for a in task.hosts["worker"] if a.split(":")[0] == task.address.split(":")[0]]
gpus = tf.config.list_physical_devices("GPU")
k = neighbours.index(task.address)
tf.config.set_visible_devices(gpus[k : k + 1] if len(gpus) >= len(neighbours) else [], "GPU")
strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver)

# 3. Parameters w: a copy on each worker, with worker 0's initial values.
with strategy.scope():
    params = models.create(flags)
    global_step = tf.Variable(0, dtype=tf.int64, trainable=False)

# 4. Worker k of n gets examples k, k + n, ...
train = data.load(flags, "train")
batches = iter(
    strategy.distribute_datasets_from_function(lambda _: problem.batches(flags, train, task.index))
)


# 5. The scheme: what each replica does in a step
def replica(batch, stop):
    began = now(tf.nest.flatten(batch))
    with tf.control_dependencies([began]):
        w = [tf.identity(p.read_value()) for p in params]
    loss, grads = models.gradients(flags, w, batch)
    computed = now(grads)
    with tf.control_dependencies([computed]):
        sent = [tf.identity(each) for each in [*grads, stop]]
    context = tf.distribute.get_replica_context()
    *mean, stop = context.all_reduce(tf.distribute.ReduceOp.MEAN, sent)
    # Record.note's arguments from loss on; began stands in for pulled, since nothing is pulled
    report = tf.stack([tf.cast(loss, tf.float64), began, began, computed, now(mean)])
    return mean, report, stop


# One update: w <- w - eta g, where g is the mean
def update(p, g):
    return p.assign_sub(flags.learning_rate * g)


@tf.function(autograph=False)
def steps(count, stop):
    reports = []
    for _ in range(count):
        mean, report, stopped = strategy.run(replica, args=(next(batches), stop))
        for p, g in zip(params, mean):
            strategy.extended.update(p, update, args=(g,))
        global_step.assign_add(1)
        reports.append(strategy.experimental_local_results(report))
    return reports, stopped


# 6. Events, evaluations and checkpoints; restores the newest checkpoint, if there is one
record = problem.Record(task, params, global_step, replicas=[task.index])

# 7. The loop. Only worker 0 checks --target_accuracy. Its stop signal travels with the gradients,
# so all workers stop after the same update.
made, stopped = int(global_step.numpy()), False
while made < flags.steps and not stopped:
    stop = tf.constant(float(task.is_chief and record.save_and_measure()))
    reports, stopped = steps(min(flags.steps_per_execution, flags.steps - made), stop)
    for (report,) in reports:
        record.note(task.index, made, *report.numpy())
        made += 1

# 8. The end. Worker 0 writes the results while the others wait: if it is lost now, all start again.
if task.is_chief:
    record.finish()


@tf.function
def barrier():
    context = tf.distribute.get_replica_context
    strategy.run(lambda: context().all_reduce(tf.distribute.ReduceOp.SUM, tf.constant(1.0)))


barrier()
# A worker that has passed may still owe another one a part of the ring's sum. So it stays until all
# have passed: if this one fails, the others have left.
with contextlib.suppress(tf.errors.UnavailableError, tf.errors.AbortedError):
    barrier()
