"""The other processes of Sharing-a-Model: a trainer, and collectors of data.

python sharing_tasks.py trainer CLUSTER FOLDER
python sharing_tasks.py collector CLUSTER INDEX CAPACITY
"""

import json
import sys
import time

import tensorflow.compat.v1 as tf


def model():
    """What trainer and readers both declare."""
    with tf.device("/job:trainer/task:0"):
        a = tf.Variable(tf.zeros([65, 128]), name="a")  # the digits network's layers
        b = tf.Variable(tf.zeros([129, 10]), name="b")
        stamp = tf.Variable(0.0, dtype=tf.float64, name="stamp")  # when the last step ended
        turn = tf.Variable(0, dtype=tf.int64, name="turn")  # odd: in the middle of an update
        done = tf.Variable(False, name="done")
        requests = tf.FIFOQueue(10, tf.bool, shapes=[[]], shared_name="requests")
    with tf.device("/job:reader/task:0"):  # the reader's mailbox is in the reader's own process
        kinds, shapes = [tf.float32, tf.float32, tf.float64], [[65, 128], [129, 10], []]
        mailbox = tf.FIFOQueue(1, kinds, shapes, shared_name="mailbox")
    return [a, b, stamp], turn, done, requests, mailbox


def trainer(cluster: dict, folder: str) -> None:
    """Trains, answers requests between two steps, and saves once a second."""
    server = tf.train.Server(cluster, "trainer", 0)
    filters = tf.ConfigProto(device_filters=["/job:trainer", "/job:reader"])  # no collectors yet
    (a, b, stamp), turn, done, requests, mailbox = model()
    with tf.control_dependencies([turn.assign_add(1)]):
        first_half = tf.group(a.assign_add(tf.ones_like(a)))
    after = tf.control_dependencies
    with after([b.assign_add(tf.ones_like(b))]), after([stamp.assign(tf.timestamp())]):
        second_half = tf.group(turn.assign_add(1))
    look, answer = [requests.size(), done], [requests.dequeue(), mailbox.enqueue([a, b, stamp])]
    saver, initialise = tf.train.Saver([a, b, stamp]), tf.global_variables_initializer()
    saved, checkpoints, over = 0.0, 0, False
    with tf.Session(server.target, config=filters) as session:
        session.run(initialise)
        while not over:
            time.sleep(0.01)  # computes a gradient
            session.run(first_half)
            time.sleep(0.01)  # a larger model takes this long to update
            session.run(second_half)
            waiting, over = session.run(look)
            if waiting:
                session.run(answer)
            if time.time() - saved > 1:
                saver.save(session, f"{folder}/model", checkpoints, write_meta_graph=False)
                saved, checkpoints = time.time(), checkpoints + 1
                print("saved", flush=True)


def shared(capacity: int):
    """What learner and collectors both declare."""
    with tf.device("/job:reader/task:0"):
        w = tf.Variable([0.0, 0.0], name="w")
        version = tf.Variable(0, dtype=tf.int64, name="version")
        kinds, shapes = [tf.float32, tf.float32, tf.int64, tf.int64], [[16], [16], [], []]
        data = tf.FIFOQueue(capacity, kinds, shapes, shared_name="data")
    return w, version, data


def collector(cluster: dict, me: int, capacity: int) -> None:
    """Pulls the model, and puts the examples on which it errs most into the queue."""
    here = f"/job:collector/task:{me}"
    filters = tf.ConfigProto(device_filters=["/job:reader", here])
    server = tf.train.Server(cluster, "collector", me, config=filters)
    w, version, data = shared(capacity)
    with tf.device(here):
        pulled, at = tf.identity(w.read_value()), tf.identity(version.read_value())
        x = tf.random.normal([64])
        y = 3 * x + 1 + 0.1 * tf.random.normal([64])  # what the world answers
        _, hardest = tf.nn.top_k(abs(pulled[0] * x + pulled[1] - y), 16)
        batch = [tf.gather(x, hardest), tf.gather(y, hardest), at, tf.constant(me, tf.int64)]
    put, count = data.enqueue(batch), 0
    with tf.Session(server.target, config=filters) as session:
        try:
            while True:
                session.run(put)
                count += 1
        except tf.errors.CancelledError:
            print("the queue is closed: I put", count, "batches", flush=True)


if __name__ == "__main__":
    tf.disable_eager_execution()
    who, cluster, *rest = sys.argv[1:]
    if who == "trainer":
        trainer(json.loads(cluster), *rest)
    else:
        collector(json.loads(cluster), *map(int, rest))
