"""For Training-Sessions-and-Hooks: one worker of SyncReplicasOptimizer, with a given gradient.

python hooks_sync.py INDEX GRADIENT TARGET
"""

import sys

import tensorflow.compat.v1 as tf

tf.disable_eager_execution()
index, gradient, target = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
w = tf.Variable(10.0, name="w")
step = tf.train.get_or_create_global_step()
optimizer = tf.train.SyncReplicasOptimizer(
    tf.train.GradientDescentOptimizer(1.0), replicas_to_aggregate=2, total_num_replicas=2
)
update = optimizer.apply_gradients([(tf.constant(gradient), w)], step)
hook = optimizer.make_session_run_hook(is_chief=index == 0, num_tokens=0)
with tf.train.MonitoredTrainingSession(
    target, is_chief=index == 0, hooks=[hook], stop_grace_period_secs=1
) as session:
    print("pushes", gradient, flush=True)
    session.run(update)
    print("global step", session.run(step), "and w =", session.run(w), flush=True)
