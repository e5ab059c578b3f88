"""A parameter server for the notebooks here: it serves until every worker has left.

Usage: python leaving_ps.py INDEX PS_0,PS_1,... WORKER_0,WORKER_1,...
"""

import sys

from common.cluster import tf  # TensorFlow, with a quiet start-up

tf.disable_eager_execution()
index, ps, workers = int(sys.argv[1]), sys.argv[2].split(","), sys.argv[3].split(",")
me = f"/job:ps/task:{index}"
config = tf.ConfigProto(device_filters=[me])  # it needs none of the other tasks
server = tf.train.Server({"ps": ps, "worker": workers}, "ps", index, config=config)

# A queue on this ps: each worker puts its number in when it leaves.
with tf.device(me):
    done = tf.FIFOQueue(len(workers), tf.int32, [[]], shared_name=f"done-{index}")
    left = done.dequeue()
print("ps", index, "serves", flush=True)
with tf.Session(server.target, config=config) as session:
    for _ in workers:
        print("task", session.run(left), "has left", flush=True)
print("all workers have left: ps", index, "ends", flush=True)
