"""CIFAR-10 as in TensorFlow's classic tutorial, trained synchronously: `--scheme synchronous`.

Each worker repeats:

    wait   for a token: the count of updates so far; if several are queued, take the newest
    pull   w <- w~
           g_k = gradient of loss and weight decay on a fresh mini-batch of distorted images, at w
           s_k = the batch's mean and variance at each batch normalisation (Xception)
    push   g_k and s_k, together with the token

A thread of the chief (worker 0) runs round after round: it gathers the pushes of all n workers,
then updates:

    w~ <- w~ - eta_t / n sum_k g_k             eta_t falls to a tenth every --decay_steps updates
    average <- a average + (1 - a) w~          the parameters for evaluation (a, d: update.py)
    moving <- d moving + (1 - d) / n sum_k s_k    the statistics for evaluation

and every worker gets a token, the new count.
"""

import os

os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1"  # faster convolutions; common/ would disable it
from common import cluster, copies, session  # import first: quiet start-up
from common.training.rounds import Rounds
import tensorflow.compat.v1 as tf

import cnn  # in this folder, as are the next five
import evaluation
import images
import progress
import update
import xception

# Flags and their defaults (--help lists them all). --steps: updates, one per round of all workers.
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
    "scheme": ("synchronous",),
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

# Queues on the ps: workers wait there for tokens, and the chief's thread for what they push.
rounds = Rounds(task, [*params, *moving], global_step)

with tf.device(task.device):
    # 4. Worker k of n gets examples k, k + n, ...; next_batch() adds ops that take a new batch.
    next_batch = images.batches(flags, worker=task.index, workers=flags.workers)
    x, labels, waited = progress.timed(next_batch)

    # 5. The scheme. Wait for a token: the count of updates so far. Then pull: w <- w~
    token = rounds.wait()
    w, _ = copies.pull(params, global_step, after=token)  # _: the token again
    logits, statistics = network.predict(w, x)
    loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)  # the mean of the batch
    grads = tf.gradients(loss + network.weight_decay(w), w)
    # Gradients and statistics travel in one transfer.
    step = rounds.push([*grads, *statistics], token)

# The update, of the means over all workers.
# First, next_update adds 1 to global_step (number: the value before). Finally, release gives each
# worker the new count, number + 1, as its next token; at --steps it gives none, and the loops end.
# All workers build this part of the graph, but only the chief's thread runs it, once per round.
total = rounds.gather(flags.workers)  # the sums over all workers
with tf.device(global_step.device):
    mean = [t / flags.workers for t in total]
grads, statistics = mean[: len(params)], mean[len(params) :]
with session.next_update(global_step, flags, after=mean) as number:
    made, averages = update.apply(flags, number, params, grads, moving, statistics)
rounds.release(made, number)

# For TensorBoard, once a second; the token is the number of this step's update
tf.summary.scalar("learning_rate", update.rate(flags, token))
tf.summary.image("distorted", x, max_outputs=4)

# 6. The monitored session: worker 0 initialises w~, hands out the first tokens and starts its
# thread; the loss and token of each step go to the worker's events file.
with session.training(
    task, server, step, loss=loss, token=token, rounds=rounds,
    evaluate=evaluation.measures(flags, network, averages, moving, global_step),
    test=images.load(flags, "test"),
    hooks=[progress.Progress(task, token, loss, waited)],
) as sess:  # fmt: skip
    while not sess.should_stop():  # 7. The loop
        sess.run(step)  # one step: token, pull, fresh batch, gradient, push
