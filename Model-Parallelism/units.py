"""Model parallelism within layers: every worker has a part of each layer.

Layers form pairs, as in Megatron-LM (arXiv 1909.08053). In each pair, worker k of n has some units
of the first layer, that is, columns of V and entries of c, and the rows of W that they feed:

    pull      its parts V_k, c_k, W_k of all pairs; worker 0 also the biases b
    forward   z_k = relu(h V_k + c_k) W_k, a part of a sum (worker 0 adds b), goes to all workers;
              h <- relu(sum_k z_k) on every worker (last pair: only on worker 0, without relu)
    backward  the same in reverse: each worker receives all parts of dL/dh
    push      each part <- part - eta times its gradient
"""

from common import cluster, copies, data, session  # import first: quiet start-up
import tensorflow.compat.v1 as tf

import network  # in this folder, as is watch
import watch

# Flags and their defaults (--help lists them all).
DEFAULTS = {
    "workers": 2,
    "ps": 2,
    "chief": 1,
    "steps": 300,
    "batch_size": 128,
    "learning_rate": 0.1,
    "model": "four_layers",  # this example's only network, in network.py
    "hidden": 512,
    "split": ("units",),
    "micro_batches": 1,
}

# 1. Who am I? Flags or TF_CONFIG give the addresses of all tasks.
tf.disable_eager_execution()  # use graphs and sessions; the main README says why
task = cluster.Task.from_flags("chief", DEFAULTS)
flags = task.flags
network.check(flags)
n = flags.workers

# 2. This task's server: the tasks talk to each other through their servers.
server = tf.train.Server(task.cluster, task.job, task.index, config=task.config)

# 3. Parameters w~ and global_step, which counts their updates: each worker's part is on one ps.
with tf.device("/job:ps/task:0"):
    global_step = tf.train.get_or_create_global_step()
params = []
for k in range(n):
    with tf.device(f"/job:ps/task:{k % flags.ps}"):
        params.append(network.create_units(flags, k))

# 4. The data: this process has it. It sends examples to all workers and labels to worker 0.
with tf.device(task.device):
    x, labels = data.batches(flags)()
    x = network.flat(x)

# 5. The scheme. Pull: worker k needs its own units only.
pull = [None] * n
for k in range(n):
    with tf.device(f"/job:worker/task:{k}"):
        pull[k] = copies.pull(params[k], global_step)
w = [each.w for each in pull]

# Forward, pair by pair. Every worker receives the others' parts of the sum. After the last pair,
# only h[0] is used, on worker 0.
h = [x] * n
for pair in range(network.PAIRS):
    z = [None] * n
    for k in range(n):
        with tf.device(f"/job:worker/task:{k}"):
            z[k] = network.forward_units(w[k], pair, h[k])
    for k in range(n):
        with tf.device(f"/job:worker/task:{k}"):
            h[k] = tf.add_n(z)
            if pair < network.PAIRS - 1:
                h[k] = tf.nn.relu(h[k])
with tf.device("/job:worker/task:0"):
    loss = network.loss(h[0], labels) / labels.shape[0]

# Backward: each operation runs where its forward operation ran.
grads = tf.gradients(loss, tf.nest.flatten(w), colocate_gradients_with_ops=True)
grads = tf.nest.pack_sequence_as(w, grads)

# Push: w~ <- w~ - eta g, on the ps, once the gradients of all workers have arrived.
pushes = [None] * n
for k in range(n):
    with tf.device(f"/job:worker/task:{k}"):
        pushes[k] = copies.send(grads[k], params[k])
params = [param for own in params for param in own]  # of all workers
# Worker 0 stands for all.
push = pushes[0]._replace(
    values=[g for each in pushes for g in each.values],
    sent=[flat for each in pushes for flat in each.sent],
)
with session.next_update(global_step, flags, push) as update:
    optimizer = tf.train.GradientDescentOptimizer(flags.learning_rate)  # schedule by update.number
    step = optimizer.apply_gradients(zip(push.values, params))

# 6. The monitored session: it logs each step, and the hooks of watch.py measure it.
everyone = session.Replica(step, loss, pull[0], push, update)
with session.training(
    task, server, params, [everyone],
    evaluate=network.evaluate_units, hooks=watch.hooks(flags),
) as sess:  # fmt: skip
    while not sess.should_stop():  # 7. The loop
        sess.run(step)  # one step: all workers, forward and backward
