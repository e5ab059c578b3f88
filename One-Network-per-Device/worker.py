"""One network per device: a grid or random search, spread over the devices of a cluster.

While it trains, a worker sends neither gradients nor parameters. Each worker repeats this:

    claim    a trial on the ps: a learning rate eta, a width, a seed
    train    its own network, --steps times: w <- w - eta g,
             g = gradient of the mean loss on a fresh mini-batch of the training set, at w
    hand in  w and its accuracy on the validation set (every fifth example of the training set)

The best network has the highest validation accuracy; ties go to the lowest validation loss. The
ensemble predicts the mean of the probabilities of all networks that did not diverge. --search grid
tries all pairs of --rates and --widths; --search random draws --trials pairs (0: as many as the
grid has) between the smallest and the largest of each.
"""

import math
import time

from common import cluster, data, models  # import first: quiet start-up
from common.training.events import Events
import numpy as np
import tensorflow.compat.v1 as tf

import ensemble  # in this folder, as are search and trials
from search import Result, Search
import trials

# Flags and their defaults (--help lists them all). --steps: updates of each network.
DEFAULTS = {
    "workers": None,  # one per GPU
    "ps": 1,
    "steps": 3000,
    "learning_rate": None,  # each trial has its own: --rates
    "hidden": None,  # and --widths
    "model": ("mlp", "linear", "cnn"),  # compared by their accuracy
    "search": ("grid", "random"),
    "rates": [0.02, 0.1, 0.5],
    "widths": [16, 64, 256],
    "trials": 0,
}

# 1. Who am I? Flags or TF_CONFIG give this worker's index and the addresses of all tasks.
tf.disable_eager_execution()  # use graphs and sessions; the main README says why
task = cluster.Task.from_flags("worker", DEFAULTS)
flags = task.flags
settings = trials.settings(flags, task.index)  # the flags of each trial

# One GPU for this process, if there is one; it sees no other.
gpus = tf.config.list_physical_devices("GPU")
if gpus:
    task.config.gpu_options.visible_device_list = str(task.index % len(gpus))
print(task.name, "computes on", gpus[task.index % len(gpus)].name if gpus else "the CPU")

# 2. This task's server: the tasks talk to each other through their servers.
server = tf.train.Server(task.cluster, task.job, task.index, config=task.config)

# 3. On the ps: who has which trial, and the finished networks.
search = Search(task, server, settings)

# 4. The data. Every worker has the whole training set, minus the validation set.
x, labels = data.load(flags, "train")
held_out = np.arange(len(labels)) % 5 == 0
training, validation = (x[~held_out], labels[~held_out]), (x[held_out], labels[held_out])
events = Events(flags, task.index)


# 5. The scheme: a whole network, on this worker's device, in a session local to this process.
def train(trial: int) -> Result:
    own = settings[trial]
    with tf.Graph().as_default(), tf.Session(config=task.config) as sess:
        params = models.create(own)
        next_batch = data.batches(own, examples=training)
        loss, grads = models.gradients(own, params, next_batch())
        optimizer = tf.train.GradientDescentOptimizer(own.learning_rate)
        step = optimizer.apply_gradients(zip(grads, params))
        sess.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        sess.run(tf.tables_initializer())  # starts the data pipeline
        run, began, updates = sess.make_callable([loss, step]), time.time(), 0
        while updates < own.steps:
            at = time.time()
            value, _ = run()  # one step: a fresh batch, its gradient, the update
            if not math.isfinite(value):  # the rate is too high: that is a result, too
                break
            updates += 1
            # Trial t's updates are numbered from steps * t + 1; total: for the progress bar.
            events.note(
                own.steps * trial + updates, float(value), time.time() - at, trial=trial,
                total=own.steps * len(settings), examples=own.batch_size or len(training[1]),
            )  # fmt: skip
            search.stay_in_touch()
        seconds, arrays = time.time() - began, sess.run(params)
    answers = ensemble.probabilities(task, own.model, arrays, validation[0])
    accuracy, loss = ensemble.measure(answers, validation[1])
    return Result(accuracy, loss, updates, seconds, task.index, arrays)


# 6. The session on the ps is in search.py. 7. The loop
while (trial := search.claim()) is not None:
    result = train(trial)
    search.hand_in(trial, result)
    # run.sh shows a task's lines that begin with "> " on the screen, without the "> ".
    print(f"> {ensemble.line(trial, settings[trial], result)}  {task.name}", flush=True)

# The end: the chief (worker 0) tests the networks and the ensemble on the test set.
search.finish(lambda found: ensemble.write(task, settings, search.names, found))
