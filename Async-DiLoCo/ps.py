"""A parameter server: it stores global parameters and applies what the workers push."""

from common import cluster, gates  # import first: quiet start-up
import tensorflow.compat.v1 as tf

tf.disable_eager_execution()
task = cluster.Task.from_flags("ps")
server = tf.train.Server(task.cluster, task.job, task.index, config=task.config)
gates.leave_when_all_have(task, server)  # server.join() would never return
