"""A worker of Multiple-Workers.ipynb: carries out the notebook's orders, one at a time.

Usage: python multiple_workers_worker.py INDEX TARGET PS WORKER_0,WORKER_1
"""

import contextlib
import sys
import time

from common.cluster import tf  # TensorFlow, with a quiet start-up

tf.disable_eager_execution()
COMPUTE = 0.01  # seconds for a mini-batch, asleep: as if on an accelerator
index, target, ps, workers = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3], sys.argv[4]
me = f"/job:worker/task:{index}"
config = tf.ConfigProto(device_filters=["/job:ps", me])  # it needs nothing of the other worker
jobs = {"ps": [ps], "worker": workers.split(",")}
server = tf.train.Server(jobs, "worker", index, config=config)

# Global, on the ps. Same name and same place in both workers: the same variables.
with tf.device("/job:ps/task:0"):
    w_global = tf.Variable(0.0, name="global/w")
    pushes = tf.Variable(0, dtype=tf.int64, name="global/pushes")

# Local, on this worker. The loss is (w - target)^2, its gradient 2 (w - target).
with tf.device(me):
    local = {"trainable": False, "collections": [tf.GraphKeys.LOCAL_VARIABLES]}
    w = tf.Variable(0.0, name="local/w", **local)
    before = tf.Variable(0.0, name="local/before", **local)
    rate = tf.placeholder_with_default(0.25, [])
    pulled = tf.identity(w_global.read_value())
    pull = tf.group(w.assign(pulled), before.assign(pulled))
    update = w.assign_sub(rate * 2 * (w - target))
    change = w - before

# A push adds the change, counts, and writes a line into the diary.
with tf.device("/job:ps/task:0"):
    diary = tf.FIFOQueue(-1, [tf.int32, tf.float32], [[], []], shared_name="diary")
    arrived = tf.identity(change)
    with tf.control_dependencies([w_global.assign_add(arrived), pushes.assign_add(1)]):
        push = diary.enqueue((index, w_global.read_value()))

# Orders come from the notebook, answers go to it: through queues on the ps.
with tf.device("/job:ps/task:0"):
    orders = tf.FIFOQueue(-1, tf.string, [[]], shared_name=f"orders-{index}").dequeue()
    answer = tf.FIFOQueue(-1, tf.float32, [[]], shared_name=f"answers-{index}").enqueue(w)
    leave = tf.FIFOQueue(2, tf.int32, [[]], shared_name="done-0").enqueue(index)


def carry_out(session: tf.Session, order: str) -> None:
    """`pull`, `update`, `push`, or `free ROUNDS RATE`: all three again and again, on its own."""
    what, *numbers = order.split()
    if what != "free":
        session.run({"pull": pull, "update": update, "push": push}[what])
        return
    for _ in range(int(numbers[0])):
        session.run(pull)
        time.sleep(COMPUTE)
        session.run(update, {rate: float(numbers[1])})
        session.run(push)


# Worker 0 is the chief: it initialises the global variables. The other one asks until it has.
missing = tf.report_uninitialized_variables(tf.global_variables())
with tf.Session(server.target, config=config) as session:
    if index == 0:
        session.run(tf.global_variables_initializer())
        print("has initialised the global variables", flush=True)
    while len(names := session.run(missing)):
        print("waits for", [name.decode() for name in names], flush=True)
        time.sleep(0.5)
    session.run(tf.local_variables_initializer())  # each worker, for itself
    print("is ready", flush=True)
    while (order := session.run(orders).decode()) != "leave":
        carry_out(session, order)
        session.run(answer)
    with contextlib.suppress(tf.errors.UnavailableError, tf.errors.AbortedError):
        session.run(leave)  # the ps may end before it answers
