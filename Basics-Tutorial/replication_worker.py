"""A worker of Replication.ipynb: a server, and in form 3 also a client with its own graph.

Usage: python replication_worker.py CLUSTER INDEX STEPS, where CLUSTER is a JSON dictionary.
"""

import json
import sys

from common.cluster import tf  # TensorFlow, with a quiet start-up
from common.gates import Gate
from common.told import addresses

RATE = 0.1


def gradient(w: tf.Tensor, k: int, n: int) -> tf.Tensor:
    """Of the mean squared error on shard k of n, at w = [slope, intercept]."""
    x = tf.constant([i / 8 for i in range(k, 16, n)])
    error = w[0] * x + w[1] - (2 * x + 1)
    return tf.stack([2 * tf.reduce_mean(error * x), 2 * tf.reduce_mean(error)])


def main(cluster: dict[str, list[str]], me: int, steps: int) -> None:
    tf.disable_eager_execution()
    device = f"/job:worker/task:{me}"
    filters = tf.ConfigProto(device_filters=["/job:ps", device])
    server = tf.train.Server(cluster, "worker", me)
    print("serves", flush=True)

    # This client's graph: the variables on the ps, and one replica, its own.
    with tf.device(tf.train.replica_device_setter(cluster=cluster, worker_device=device)):
        w = tf.Variable([0.0, 0.0], name="clients/w")
        updates = tf.Variable(0, name="clients/updates")
        step = tf.group(w.assign_sub(RATE * gradient(w, me, 2)), updates.assign_add(1))
    ready, start = Gate(f"ready {me}"), Gate("start")
    addresses.wait_for("the ps", cluster["ps"][0], 60)
    with tf.Session(server.target, config=filters) as session:
        if me == 0:  # the chief initialises for all
            session.run(tf.global_variables_initializer())
        ready.open(session)
        start.wait(session, "the notebook", 300)
        for _ in range(steps):
            session.run(step)
    print("done: operations in my graph", len(tf.get_default_graph().get_operations()), flush=True)
    server.join()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), *map(int, sys.argv[2:]))
