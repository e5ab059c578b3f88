"""Worker 1 of Parameter-Server.ipynb: reads w, then tells both parameter servers that it leaves.

Usage: python parameter_server_worker.py PS_0,PS_1 WORKER_0,WORKER_1
"""

import contextlib
import sys

from common.cluster import tf  # TensorFlow, with a quiet start-up

tf.disable_eager_execution()
jobs = {"ps": sys.argv[1].split(","), "worker": sys.argv[2].split(",")}
config = tf.ConfigProto(device_filters=["/job:ps", "/job:worker/task:1"])
server = tf.train.Server(jobs, "worker", 1, config=config)
with tf.device("/job:ps/task:0"):
    w = tf.Variable(0.0, name="w")  # same name, same place: the same variable
leave = []
for index in (0, 1):
    with tf.device(f"/job:ps/task:{index}"):  # same name, same place: the same queue
        done = tf.FIFOQueue(2, tf.int32, [[]], shared_name=f"done-{index}")
        leave.append(done.enqueue(1))
with tf.Session(server.target, config=config) as session:
    print("worker 1 finds w =", round(float(session.run(w)), 4), flush=True)
    for each in leave:
        with contextlib.suppress(tf.errors.UnavailableError, tf.errors.AbortedError):
            session.run(each)  # that ps may end before it answers
