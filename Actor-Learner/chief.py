"""The learner of an actor-learner system: REINFORCE with a learned baseline (Williams 1992).

Actors (worker.py) pull the policy pi, play with it, and put their episodes into the learner's
queue. The learner repeats:

    take   (o_t, a_t, G_t) of the next batch: observation, action, return from t on; wait while the
           queue is empty
    A_t    = G_t - b(o_t)                                how much better than expected it went
    loss   = mean_t(-A_t log pi(a_t | o_t))              A_t is a constant here
           + mean_t((G_t - b(o_t))^2)                    trains the baseline b, a second network
    w      <- Adam(w, gradient of the loss)              w: the parameters of pi and b

--episodes: per batch. --capacity: batches in the queue. --steps: updates, unless the mean return of
the last 100 episodes reaches --target_return first.
"""

import math

from common import cluster, fail, gates, models  # import first: quiet start-up
from common.graph import aborts, clock
from common.record import faults
from common.record.words import ABORTED
from common.training import checkpoints
from common.training.events import Events, finish
import tensorflow.compat.v1 as tf

import cartpole  # in this folder, as is shared
import shared

# Flags and their defaults (--help lists them all). None: a flag that does not apply here.
DEFAULTS = {
    "workers": 2,  # actors
    "ps": None,  # the learner keeps the parameters
    "chief": 1,  # the learner
    "steps": 2000,  # maximum
    "target_return": 195.0,  # stop when the last 100 episodes reach this mean
    "learning_rate": 0.005,
    "discount": 0.99,
    "episodes": 4,  # per batch
    "capacity": 4,  # batches in the queue
    "hidden": 32,
    "data": ("cartpole",),
    "model": ("policy",),
    "batch_size": None,
    "target_accuracy": None,
    "steps_per_execution": None,
}

# 1. Who am I? Flags or TF_CONFIG give the addresses of all tasks.
tf.disable_eager_execution()  # use graphs and sessions; the main README says why
task = cluster.Task.from_flags("chief", DEFAULTS)
flags = task.flags
shared.check(flags)

# 2. This task's server. The filter: the learner's sessions talk to no other task. The learner need
# not know which actors exist; they connect to it.
task.config.device_filters.append(task.device)
server = tf.train.Server(task.cluster, task.job, task.index, config=task.config)

# 3. The parameters, the count of their updates, and the queue: here, shared with the actors.
policy, baseline, global_step, queue = shared.declare(flags)

with tf.device(task.device):
    # 4. The data: the oldest batch in the queue. This operation blocks while the queue is empty.
    batch = queue.dequeue()
    observations = tf.ensure_shape(batch["observations"], [None, 4])
    returns_to_go = batch["returns_to_go"]
    with tf.control_dependencies([returns_to_go]):
        queued = queue.size()  # batches left

    # 5. The scheme. A_t = G_t - b(o_t), then the two losses, then Adam. Adam's slots are here, too.
    expected = models.logits("mlp", baseline, observations)[:, 0]  # b(o_t)
    advantages = tf.stop_gradient(returns_to_go - expected)
    negative_log_pi = tf.nn.sparse_softmax_cross_entropy_with_logits(  # of a_t, given o_t
        labels=batch["actions"], logits=models.logits("mlp", policy, observations)
    )
    baseline_loss = tf.reduce_mean((returns_to_go - expected) ** 2)
    loss = tf.reduce_mean(advantages * negative_log_pi) + baseline_loss
    step = tf.train.AdamOptimizer(flags.learning_rate).minimize(loss, global_step)

    # The returns of the last 100 episodes: a variable, so checkpoints include it.
    recent = tf.Variable(tf.fill([100], math.nan), trainable=False, name="recent")
    with tf.control_dependencies([step]):
        latest = recent.assign(tf.concat([recent, batch["returns"]], axis=0)[-100:])
        count, recent_mean = global_step.read_value(), tf.reduce_mean(latest)
        counted = clock.now([])

# What the loop reads after each update, and (so_far) before the first one, even after a restart.
tf.summary.scalar("return", recent_mean)
update = {name: batch[name] for name in ("actor", "pulled_at", "times", "returns")}
update |= {"loss": loss, "queued": queued, "examples": tf.size(returns_to_go)}
update |= {"count": count, "counted": counted, "mean": recent_mean}
update |= {"summary": tf.summary.merge_all()}
so_far = [global_step, tf.reduce_mean(recent)]
close = queue.close(cancel_pending_enqueues=True)
patience = tf.RunOptions(timeout_in_ms=int(1000 * flags.timeout))


def take(step_context):
    """One update: takes a batch, or waits for one. None if TensorFlow aborted the call by mistake,
    which happens about once in 40,000 calls; the session goes on."""
    try:
        return step_context.run_with_hooks(update, options=patience)
    except (tf.errors.AbortedError, tf.errors.CancelledError) as error:
        if not aborts.is_abort(error):
            raise
        print(ABORTED, flush=True)


ready = gates.Gate("ready", task.device)
left = {f"worker {k}": gates.Gate(f"left-{k}", task.device) for k in range(flags.workers)}

# 6. TensorFlow's monitored session initialises the parameters, or restores the newest checkpoint.
# Checkpoints, a hook, saves one every second; TensorFlow's own hook for that would also write to
# TensorBoard. When the gate opens, the actors may pull.
events = [Events(flags, k, every=1) for k in range(flags.workers)]
tensorboard = tf.summary.FileWriter(f"{flags.results}/chief-0")
saver = checkpoints.saver(flags.checkpoint_dir)
with tf.train.MonitoredTrainingSession(
    server.target, checkpoint_dir=flags.checkpoint_dir, save_checkpoint_secs=None,
    save_summaries_steps=None, save_summaries_secs=None, log_step_count_steps=None,
    scaffold=tf.train.Scaffold(saver=saver), config=task.config,
    hooks=[checkpoints.Checkpoints(flags.checkpoint_dir, saver)],
) as sess:  # fmt: skip
    made, mean = sess.run(so_far)
    checkpoints.resumed(task, made)
    ready.open(sess)
    # 7. The loop. `not >=` is also true while the mean is NaN, before there are 100 episodes.
    while made < flags.steps and not mean >= flags.target_return:
        try:
            found = sess.run_step_fn(take)
        except tf.errors.DeadlineExceededError:
            fail(f"no worker sent a batch within {flags.timeout:g} s: start one, or see its log")
        if found is None:
            made, mean = sess.run(so_far)  # whether the update was made; its batch is gone
            continue
        if not math.isfinite(found["loss"]):
            faults.diverged(task, "the loss of the learner")
        made, mean = int(found["count"]), float(found["mean"])
        began, pull, play = found["times"]
        events[found["actor"]].note(
            made, float(found["loss"]), compute=play, pull=pull, pulled_at=int(found["pulled_at"]),
            time=began + pull + play,  # when the actor had finished
            counted=float(found["counted"]),
            examples=int(found["examples"]), queued=int(found["queued"]),
            returns=found["returns"].tolist(), **{"return": float(found["returns"].mean())},
        )  # fmt: skip
        tensorboard.add_summary(found["summary"], made)
        if made % 10 == 0 and not math.isnan(mean):  # NaN: fewer than 100 episodes so far
            print(f"update {made}: the mean of the last 100 returns is {mean:.1f}", flush=True)

# 8. The end. The last checkpoint is saved. The learner tests the greedy policy on 100 new episodes,
# then closes the queue. All actors exit, even those blocked in a put; the learner exits last.
with aborts.Connection(server.target, config=task.config) as sess:
    arrays = sess.run({variable.op.name: variable for variable in [*policy, *baseline]})
    reached = cartpole.greedy_return(list(arrays.values())[: len(policy)], 100, flags.seed)
    share = reached / cartpole.LONGEST
    test = {"test_accuracy": share, "test_loss": 1 - share, "test_return": reached}
    finish(flags, arrays, made, **test)
    print(f"after {made} updates, the greedy policy has a mean return of {reached:.1f}", flush=True)
    sess.run(close)
    for actor, gate in left.items():
        gate.wait(sess, actor, flags.timeout)
