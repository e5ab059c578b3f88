"""The tasks of Replication.ipynb: a ps, or workers, of which all but the first also have a client.

Usage: python replication_worker.py CLUSTER JOB, where CLUSTER is a JSON dictionary. All tasks of a
job share one process, to save memory.
"""

import argparse
import functools
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from common import cluster, copies, data, models  # cluster: TensorFlow, with a quiet start-up

tf = cluster.tf
BATCH, RATE = 64, 0.1
# The digits network, 64-128-10. A mini-batch takes 10 ms, asleep, as if on an accelerator.
FLAGS = argparse.Namespace(data="digits", model="mlp", hidden=128, seed=0, compute_ms=10)
digits = functools.cache(functools.partial(data.load, FLAGS, "train"))


def config(*tasks: str) -> tf.ConfigProto:
    """Settings of a server or a session. With names of tasks, a session uses only these."""
    found = tf.ConfigProto(device_filters=tasks)
    found.inter_op_parallelism_threads = 16  # eight workers share a process, and sleep in it
    found.experimental.disable_thread_spinning = True  # a thread that waits uses no CPU time
    found.graph_options.rewrite_options.disable_meta_optimizer = True  # for large graphs only
    return found


def batches(k: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Mini-batches of replica k, without end: 64 random digits, and their labels."""
    x, labels = digits()
    random = np.random.default_rng(k)
    while True:
        chosen = random.integers(len(labels), size=BATCH)
        yield x[chosen], labels[chosen]


def shared() -> tuple[list[tf.Variable], tf.Variable]:
    """On the ps: the parameters, and how many updates they have had."""
    with tf.device("/job:ps/task:0"):
        return models.create(FLAGS), tf.Variable(0, trainable=False, name="updates")


def replica(k: int, params: list, updates: tf.Variable) -> tuple[list[tf.Tensor], Callable]:
    """Replica k, on worker k: its gradients, sent to the ps, and a function that feeds it."""
    with tf.device(f"/job:worker/task:{k}"):
        x, labels = tf.placeholder(tf.float32, [BATCH, 8, 8]), tf.placeholder(tf.int64, [BATCH])
        pull = copies.pull(params, updates)
        _, gradients = models.gradients(FLAGS, pull.w, (x, labels))
        push = copies.send(gradients, params)
    draw = batches(k)
    return push.values, lambda: dict(zip((x, labels), next(draw)))


def update(params: list, updates: tf.Variable, gradients: Sequence[tf.Tensor]) -> tf.Operation:
    """One update of the parameters, on the ps."""
    with tf.device("/job:ps/task:0"):
        changes = [p.assign_sub(RATE * g, read_value=False) for p, g in zip(params, gradients)]
        return tf.group(*changes, updates.assign_add(1, read_value=False))


def own(k: int) -> list[tuple[tf.Operation, Callable]]:
    """Form 3, the whole graph of client k: the shared variables and one replica, its own."""
    params, updates = shared()
    gradients, feed = replica(k, params, updates)
    return [(update(params, updates, gradients), feed)]


class Client:
    """A client: one graph, one session, and a thread for each call that it makes in a step.

    Args:
        target: the server that the session connects to.
        form: builds the graph; returns, for each call, an operation and a function that feeds it.
        number: what `form` must know: how many replicas, or which one.
        others: so many more clients, 1, 2, ..., in their worker's process, make the same steps.
        settings: of the session.
    """

    def __init__(
        self,
        target: str,
        form: Callable,
        number: int,
        others: int = 0,
        settings: tf.ConfigProto | None = None,
    ):
        with tf.Graph().as_default() as self.graph:
            self.calls = form(number)
            self.operations = len(self.graph.get_operations())
            *self.params, self.updates = tf.global_variables()
            self.initialise = tf.global_variables_initializer()
            self.count = tf.placeholder(tf.int32, [])
            meetings = [meeting(k) for k in range(1, others + 1)]
            self.orders = [orders.enqueue(self.count) for orders, _ in meetings]
            self.answers = [answers.dequeue() for _, answers in meetings]
        self.session = tf.Session(target, self.graph, settings or config())

    @property
    def fed(self) -> int:
        """Bytes that this client feeds in a step."""
        return sum(array.nbytes for _, feed in self.calls for array in feed().values())

    def steps(self, count: int) -> tuple[np.ndarray, float]:
        """Seconds of every call, and CPU seconds of this process per step."""
        self.session.run(self.orders, {self.count: count})  # the other clients start
        used = time.process_time()
        with ThreadPoolExecutor(len(self.calls)) as threads:
            took = list(threads.map(lambda call: self.repeat(count, *call), self.calls))
        used = time.process_time() - used
        self.session.run(self.answers, options=tf.RunOptions(timeout_in_ms=120_000))
        return np.concatenate(took), used / count

    def repeat(self, count: int, step: tf.Operation, feed: Callable) -> list[float]:
        """One thread's calls."""
        took = []
        for _ in range(count):
            began = time.perf_counter()
            self.session.run(step, feed())
            took.append(time.perf_counter() - began)
        return took


def meeting(k: int) -> tuple[tf.FIFOQueue, tf.FIFOQueue]:
    """Queues on the ps: how many steps client k shall make, and who has made them."""
    with tf.device("/job:ps/task:0"):
        orders = tf.FIFOQueue(-1, tf.int32, [[]], shared_name=f"orders-{k}")
        return orders, tf.FIFOQueue(-1, tf.int32, [[]], shared_name="answers")


def obey(target: str, k: int) -> None:
    """Client k of form 3: makes as many steps as the notebook orders, again and again."""
    settings = config("/job:ps", f"/job:worker/task:{k}")  # it needs no other worker
    me = Client(target, own, k, settings=settings)
    with me.graph.as_default():
        orders, answers = meeting(k)
        order, answer = orders.dequeue(), answers.enqueue(k)
    while True:
        me.steps(int(me.session.run(order)))
        me.session.run(answer)


def main(hosts: dict[str, list[str]], job: str) -> None:
    tf.disable_eager_execution()
    servers = [tf.train.Server(hosts, job, k, config=config()) for k, _ in enumerate(hosts[job])]
    print("serves", flush=True)
    if job == "worker":  # client 0 is the notebook
        for k in range(1, len(servers)):
            threading.Thread(target=obey, args=(servers[k].target, k)).start()
    servers[0].join()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2])
