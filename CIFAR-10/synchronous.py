"""CIFAR-10 as in TensorFlow's classic tutorial, trained synchronously: `--scheme synchronous`.

Each worker repeats:

    wait   for a token: the count of updates so far; if several are queued, take the newest
    pull   w <- w~
           g_k = gradient of loss and weight decay on a fresh mini-batch of distorted images, at w
           s_k = the batch's mean and variance at each batch normalisation (Xception)
    push   g_k and s_k, together with the token

A thread of the chief (worker 0) runs round after round: it gathers the pushes of all n workers,
then updates, all on the ps:

    w~ <- w~ - eta_t / n sum_k g_k             eta_t falls to a tenth every --decay_steps updates
    average <- a average + (1 - a) w~          the parameters for evaluation (a, d: apply.py)
    moving <- d moving + (1 - d) / n sum_k s_k    the statistics for evaluation

and every worker gets a token, the new count.
"""

import os

os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1"  # faster convolutions; common/ would disable it
from common import cluster, copies, session  # import first: quiet start-up
from common.training.rounds import Rounds
import tensorflow.compat.v1 as tf

import apply  # in this folder, as are the next five
import cnn
import evaluation
import images
import progress
import xception

# Flags and their defaults (--help lists them all). --steps: updates, one per round.
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

with tf.device(task.device):  # this worker's GPU, or its CPU
    # 4. Worker k of n gets examples k, k + n, ...; next_batch() adds ops that take a new batch.
    next_batch = images.batches(flags, worker=task.index, workers=flags.workers)
    x, labels, waited = progress.timed(next_batch)

    # 5. The scheme. token.number: the count of updates so far, on the ps
    token = rounds.wait()
    pull = copies.pull(params, global_step, after=token.number)  # w <- w~
    logits, statistics = network.predict(pull.w, x)
    loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)  # the mean of the batch
    grads = tf.gradients(loss + network.weight_decay(pull.w), pull.w)
    # Gradients and statistics travel in one transfer to the ps.
    push = copies.send([*grads, *statistics], [*params, *moving])
    step = rounds.push(push, token)

# The update, of the means over all workers, on the ps.
# global_step counts it first (update.number: the count before), then it is applied. Then release
# gives each worker the new count as its next token; after --steps updates it closes the queues of
# the tokens instead, which ends the loops.
# All workers build this part of the graph, but only the chief's thread runs it, once per round.
gathered = rounds.gather(flags.workers)  # gathered.values: the sums over all workers
with session.next_update(global_step, flags, gathered) as update:
    mean = [total / flags.workers for total in gathered.values]
    grads, statistics = mean[: len(params)], mean[len(params) :]
    applied, averages = apply.update(flags, update.number, params, grads, moving, statistics)
rounds.release(applied, update, gathered)

# For TensorBoard, once a second; token.number is the number of this step's update
tf.summary.scalar("schedule/learning_rate", apply.rate(flags, token.number))
tf.summary.image("distorted", x, max_outputs=4)

# 6. The monitored session: worker 0 initialises w~, starts its thread, and gives each worker a
# first token. At the start and the end, each waits for all others.
me = session.Replica(step, loss, pull, push, token)  # what to run, and what to measure
with session.training(
    task, server, [*params, *moving], [me], rounds=rounds,
    evaluate=evaluation.measures(flags, network, averages, global_step),
    test=images.load(flags, "test"),
    hooks=[progress.Progress(task, token.number, loss, waited)],
) as sess:  # fmt: skip
    while not sess.should_stop():  # 7. The loop
        sess.run(step)  # one step: token, pull; a batch, before or after; gradient; push
