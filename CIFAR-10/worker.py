"""CIFAR-10 as in TensorFlow's classic tutorial, trained asynchronously by several workers.

Each worker repeats this, without waiting for the others:

    pull   w <- w~
           g = gradient of loss and weight decay on a fresh mini-batch of distorted images, at w
           s = the batch's mean and variance at each batch normalisation (Xception)
    push   w~ <- w~ - eta_t g               eta_t falls to a tenth every --decay_steps updates
           moving <- d moving + (1 - d) s    the statistics for evaluation
           average <- a average + (1 - a) w~   the parameters for evaluation (a, d: apply.py)
"""

import os

os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1"  # faster convolutions; common/ would disable it
from common import cluster, copies, session  # import first: quiet start-up
import tensorflow.compat.v1 as tf

import apply  # in this folder, as are the next five
import cnn
import evaluation
import images
import progress
import xception

# Flags and their defaults (--help lists them all). --steps: total updates by all workers.
DEFAULTS = {
    "workers": 2,
    "ps": 1,
    "steps": 500,
    "learning_rate": 0.1,
    "decay_steps": 400,  # the rate falls to a tenth after this many updates
    "data": ("cifar10", "digits", "synthetic"),
    "model": ("cnn", "xception"),
    "width": 0.25,  # xception: channels relative to the paper
    "image_size": 71,  # xception: images are enlarged to this many pixels
    "scheme": ("asynchronous", "synchronous"),  # synchronous.py
    "log_frequency": 50,  # updates between two printed lines
}

# 1. Who am I? Flags or TF_CONFIG give this worker's index and the addresses of all tasks.
tf.disable_eager_execution()  # use graphs and sessions; the main README says why
task = cluster.Task.from_flags("worker", DEFAULTS)
flags = task.flags
images.check(flags)
network = {"cnn": cnn, "xception": xception}[flags.model]

# 2. This task's server: the tasks talk to each other through their servers.
server = tf.train.Server(task.cluster, task.job, task.index, config=task.config)
images.fetch(task, server)  # the chief downloads the data, once; the others wait

# 3. Parameters w~, moving statistics, and global_step, which counts the updates: on the ps.
with tf.device(tf.train.replica_device_setter(cluster=task.cluster)):
    params, moving = network.create(flags, images.CLASSES)
    global_step = tf.train.get_or_create_global_step()

with tf.device(task.device):  # this worker's GPU, or its CPU
    # 4. Worker k of n gets examples k, k + n, ...; next_batch() adds ops that take a new batch.
    next_batch = images.batches(flags, worker=task.index, workers=flags.workers)
    x, labels, waited = progress.timed(next_batch)

    # 5. The scheme. Staleness: update.number - pull.count, both on the ps
    pull = copies.pull(params, global_step)  # w <- w~
    logits, statistics = network.predict(pull.w, x)
    loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)  # the mean of the batch
    grads = tf.gradients(loss + network.weight_decay(pull.w), pull.w)
    # Gradients and statistics travel in one transfer to the ps.
    push = copies.send([*grads, *statistics], [*params, *moving])
grads, statistics = push.values[: len(params)], push.values[len(params) :]

# Push, on the ps, once all have arrived.
# global_step counts it first (update.number: the count before), then it is applied. After --steps
# updates, sess.run(step) raises OutOfRangeError instead, which ends the loop.
with session.next_update(global_step, flags, push) as update:
    step, averages = apply.update(flags, update.number, params, grads, moving, statistics)

# For TensorBoard, once a second
tf.summary.scalar("schedule/learning_rate", apply.rate(flags, update.number))
tf.summary.image("distorted", x, max_outputs=4)

# 6. The monitored session: worker 0 initialises w~. At the start and the end, each waits for all.
me = session.Replica(step, loss, pull, push, update)  # what to run, and what to measure
with session.training(
    task, server, [*params, *moving], [me],
    evaluate=evaluation.measures(flags, network, averages, global_step),
    test=images.load(flags, "test"),
    hooks=[progress.Progress(task, update.number, loss, waited)],
) as sess:  # fmt: skip
    while not sess.should_stop():  # 7. The loop
        sess.run(step)  # one step: pull and fresh batch, in any order; gradient; push
