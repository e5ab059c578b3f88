"""Model parallelism by layer: one network, cut between its layers into one stage per worker.

One step, with the batch in m micro-batches (--micro_batches) and p stages, stage s on worker s:

    pull      w_s <- w~_s, the parameters of its layers
    forward   h_0 = x; for s = 0 .. p - 1:  h_{s+1} = f_s(h_s; w_s), which goes to worker s + 1
    backward  for s = p - 1 .. 0:  g_s = dL/dw_s, and d_s = dL/dh_s, which goes to worker s - 1
    push      w~_s <- w~_s - eta g_s, where g_s is summed over all micro-batches
"""

from common import cluster, copies, data, session  # import first: quiet start-up
from common.graph import clock
import tensorflow.compat.v1 as tf

import network  # in this folder, as is watch
import watch

# Flags and their defaults (--help lists them all). --split units: see units.py.
DEFAULTS = {
    "workers": 2,
    "ps": 2,
    "chief": 1,
    "steps": 300,
    "batch_size": 128,
    "learning_rate": 0.1,
    "model": "four_layers",  # this example's only network, in network.py
    "hidden": 512,
    "split": ("layers", "units"),
    "micro_batches": 1,
}

# 1. Who am I? Flags or TF_CONFIG give the addresses of all tasks.
tf.disable_eager_execution()  # use graphs and sessions; the main README says why
task = cluster.Task.from_flags("chief", DEFAULTS)
flags = task.flags
network.check(flags)
stages = network.stages(flags)  # each stage's layers: [[0, 1], [2, 3]] with two workers
p, m = len(stages), flags.micro_batches

# 2. This task's server: the tasks talk to each other through their servers.
server = tf.train.Server(task.cluster, task.job, task.index, config=task.config)

# 3. Parameters w~ and global_step, which counts their updates: the stages are spread over the ps.
with tf.device("/job:ps/task:0"):
    global_step = tf.train.get_or_create_global_step()
params = []
for s, layers in enumerate(stages):
    with tf.device(f"/job:ps/task:{s % flags.ps}"):
        params.append([param for layer in layers for param in network.create(flags, layer)])

# 4. The data: this process has it. It sends examples to the first worker and labels to the last, in
# micro-batches.
with tf.device(task.device):
    x, labels = data.batches(flags)()
    examples = labels.shape[0]
    x, labels = network.micro_batches(flags, x, labels)

# 5. The scheme. Pull: worker s needs the parameters of its own layers only.
pull = [None] * p
for s in range(p):
    with tf.device(f"/job:worker/task:{s}"):
        pull[s] = copies.pull(params[s], global_step)
w = [each.w for each in pull]

# Forward: micro-batch i passes through stage s once it has arrived and micro-batch i - 1 is done.
h, out, clocks = {}, {}, {}
before = list(w)  # what worker s must have finished before its next micro-batch
for s in range(p):
    with tf.device(f"/job:worker/task:{s}"):
        for i in range(m):
            h[s, i] = tf.identity(out[s - 1, i] if s else x[i])  # arrives on this worker
            began = clock.now([h[s, i], *before[s]])
            with tf.control_dependencies([began]):
                out[s, i] = network.forward(w[s], h[s, i], last=s == p - 1)
            before[s] = [clock.now([out[s, i]])]
            clocks["forward", s, i] = began, *before[s]

# The loss: the mean over the batch, as a sum of the micro-batches' shares. d: its gradient.
d = {}
with tf.device(f"/job:worker/task:{p - 1}"):
    shares = [network.loss(out[p - 1, i], labels[i]) / examples for i in range(m)]
    loss = tf.add_n(shares)
    for i in range(m):
        (d[p, i],) = tf.gradients(shares[i], out[p - 1, i])

# Backward: in reverse order, last micro-batch first. Nothing needs dL/dx, so it is not computed.
grads = [None] * p
for s in reversed(range(p)):
    with tf.device(f"/job:worker/task:{s}"):
        for i in reversed(range(m)):
            d_out = tf.identity(d[s + 1, i])  # arrives on this worker
            began = clock.now([d_out, *before[s]])
            with tf.control_dependencies([began]):
                *g, d[s, i] = tf.gradients(out[s, i], [*w[s], h[s, i]], d_out)
                grads[s] = [a + b for a, b in zip(grads[s], g)] if grads[s] else g
            before[s] = [clock.now([*grads[s], d[s, i]] if s else grads[s])]
            clocks["backward", s, i] = began, *before[s]

# Push: w~_s <- w~_s - eta g_s, on the ps, once the gradients of all stages have arrived.
pushes = [None] * p
for s in range(p):
    with tf.device(f"/job:worker/task:{s}"):
        pushes[s] = copies.send(grads[s], params[s])
params = [param for own in params for param in own]  # of all workers
# The first stage computes last.
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
    evaluate=network.evaluate, hooks=watch.hooks(flags, clocks),
) as sess:  # fmt: skip
    while not sess.should_stop():  # 7. The loop
        sess.run(step)  # one step: all stages, forward and backward
