"""ParameterServerStrategy: HogWild with one client. The chief runs the program and schedules the
steps. The next free worker runs the next step, without waiting for the others:

    pull   w <- w~
           g = gradient of the mean loss on a fresh mini-batch of that worker's shard, at w
    push   w~ <- w~ - eta g
"""

from common import cluster, data, models  # import first: quiet start-up
import time

import tensorflow as tf

import problem  # in this folder
from common.told import addresses
from common.graph.clock import now

# Flags and their defaults (--help lists them all). --strategy: the script of that name, or this.
DEFAULTS = {
    "workers": 2,
    "ps": 1,
    "chief": 1,
    "steps": 1000,
    "learning_rate": 0.2,
    "model": ("mlp", "linear", "cnn"),
    "strategy": ("parameter_server", "multi_worker_mirrored", "mirrored", "central_storage"),
}

# 1. Who am I? Flags or TF_CONFIG give the addresses of all tasks.
task = cluster.Task.from_flags("chief", DEFAULTS)
flags = task.flags
problem.start_again_after_a_loss(task)
for job, k in task.servers:  # wait for each ps and worker, which are bare servers
    addresses.wait_for(f"{job} {k}", task.hosts[job][k], flags.timeout)

# 2. The strategy. It starts this task's server and connects to the others.
resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
    task.cluster, task_type="chief", task_id=0, rpc_layer="grpc"
)
with problem.connecting(task):
    strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
this_worker = tf.distribute.coordinator.experimental_get_current_worker_index

# 3. Parameters w~ and global_step, which counts their updates: the strategy puts them on the ps.
with strategy.scope():
    params = models.create(flags)
    global_step = tf.Variable(0, dtype=tf.int64, trainable=False)
with tf.device(global_step.device):
    reports = tf.queue.FIFOQueue(100_000, tf.float64, [[10]])  # one from each step

# 4. Worker k of n gets examples k, k + n, ...; the pipeline runs on the worker.
train = data.load(flags, "train")
batches = iter(
    coordinator.create_per_worker_dataset(lambda: problem.batches(flags, train, this_worker()))
)


# 5. The scheme: one step, a function that runs on the worker
def one_step(batch):
    began = now(list(batch))
    with tf.device(global_step.device), tf.control_dependencies([began]):
        pulled_at, read = global_step.read_value(), now([])  # just before w~ is read
    with tf.control_dependencies([pulled_at, read]):
        w = [tf.identity(p.read_value()) for p in params]  # pull: w <- w~
    pulled = now(w)
    with tf.control_dependencies([pulled]):
        loss, grads = models.gradients(flags, w, batch)
    computed = now(grads)
    arrived = []
    for p, g in zip(params, grads):
        with tf.device(p.device), tf.control_dependencies([computed]):
            arrived.append(flags.learning_rate * g)
    # Push: w~ <- w~ - eta g, once eta g has arrived. First, one atomic operation reads global_step
    # (number: the value before) and adds 1 to it; then the update is applied at once.
    with tf.device(global_step.device), tf.control_dependencies(arrived):
        number = tf.raw_ops.ResourceCountUpTo(
            resource=global_step.handle, limit=tf.int64.max, T=tf.int64
        )
        counted = now([number])
    updates = []
    for p, move in zip(params, arrived):
        with tf.device(p.device), tf.control_dependencies([number]):
            updates.append(p.assign_sub(move))
    # The worker, then the arguments of Record.note
    report = [this_worker(), number, loss, began, pulled, computed, now(updates), pulled_at]
    report += [counted - read, counted]
    with tf.device(global_step.device):
        reports.enqueue(tf.stack([tf.cast(value, tf.float64) for value in report]))


@tf.function(autograph=False)
def steps(batches, count):
    for _ in range(count):
        strategy.run(one_step, args=(next(batches),))


# 6. Events, evaluations and checkpoints; restores the newest checkpoint, if there is one
record = problem.Record(task, params, global_step, replicas=range(flags.workers))


def note_steps():
    """Reads the reports that finished steps left on the ps; returns how many there were."""
    found = reports.dequeue_many(reports.size()).numpy()
    for worker, *values in found:
        record.note(int(worker), *values)
    return len(found)


# 7. The loop: schedules --steps steps, at most 50 per worker ahead of the finished ones.
scheduled = made = int(global_step.numpy())
last = flags.steps
while scheduled < last or not coordinator.done():
    while scheduled < min(last, made + 50 * flags.workers):
        count = min(flags.steps_per_execution, last - scheduled)
        coordinator.schedule(steps, args=(batches, count))
        scheduled += count
    time.sleep(0.02)  # the coordinator can wait for all steps (join), not for the next few
    made += note_steps()
    if record.save_and_measure():  # --target_accuracy is reached: nothing more is scheduled
        last = scheduled
coordinator.join()
note_steps()
record.finish()
problem.let_go(task)
