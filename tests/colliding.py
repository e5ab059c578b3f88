"""A step that TensorFlow aborts, since its worker has seen the number of a request before.

    LD_PRELOAD=seeds.so TF_CPP_MIN_LOG_LEVEL=0 TF_CPP_VMODULE=master_session=2 python colliding.py

Each call of a session has a new thread. With the same seed, two calls give their requests the same
numbers. The second call is to another ps, so the worker refuses its own part, and the ps does not.
With `--out_of_order`, `Task.first` is not the graph's first operation, and no part of calls that
feed. With `--read`, the two calls do not take steps, but read rows of two ps. `test_aborts.py` runs
all.
"""

import argparse
import ctypes
import functools
import math
import re
import sys
import tempfile
import threading
from collections.abc import Callable

import tensorflow.compat.v1 as tf

from common import copies
from common.cluster import Task
from common.graph import aborts, rows
from common.launch import network
from common.session import next_update
from common.training import steps as training
from common.training.measured import Replica

tf.disable_eager_execution()
SEEDS = ctypes.CDLL(None)  # what is preloaded: seeds.c
SECONDS = 2.0  # a call that waits for nothing takes much less


def step_of(task, index: int, w: tf.Variable, count: tf.Variable) -> training.Step:
    """Adds 1 to a parameter."""
    pull = copies.pull([w], count)
    with tf.device(task.device):
        one = 0 * pull.w[0] + 1
    push = copies.send([one], [w])
    with next_update(count, task.flags, push) as update:
        step = w.assign_add(push.values[0], read_value=False)
    return training.Step(task, index, [Replica(step, one, pull, push, update)])


def call(work: Callable) -> None:
    try:
        found = work()
        print("made" if found is None else f"read {len(found[0])}", flush=True)
    except aborts.CallAborted:
        print("aborted", flush=True)


def say_it_is_blocked() -> None:
    """Writes to the log what TensorFlow itself writes there after two minutes."""
    with open("/dev/fd/2") as log:
        step = re.findall(r"RunPartitions step_id (\d+)", log.read())[-1]
    sys.stderr.write(
        "RunStep still blocked after 60 seconds. Failed with error status: ABORTED: From /job:"
        "worker/replica:0/task:0:\nThe same RunGraph (Worker) request was received twice. step_id: "
        f"{step} exec_opts {{ }}\n- No response from RunGraph call to worker: /job:ps/replica:0/"
        "task:0\n"
    )
    sys.stderr.flush()


def main(out_of_order: bool, read: bool) -> None:
    ports = network.free_ports(3, False)
    addresses = [f"127.0.0.1:{port}" for port in ports]
    hosts = {"ps": addresses[:2], "worker": addresses[2:]}
    flags = argparse.Namespace(steps=100, workers=1, batch_size=1, steps_per_execution=1, delay={})
    flags.results = tempfile.mkdtemp()
    task = Task("worker", 0, hosts, flags)
    places = [("ps", 0), ("ps", 1), ("worker", 0)]
    servers = [tf.train.Server(hosts, *place, config=task.config) for place in places]
    if not out_of_order:
        task.first  # noqa: B018
    variables = []
    for k in range(2):
        with tf.device(f"/job:ps/task:{k}"):
            variables.append((tf.Variable(0.0), tf.Variable(0, dtype=tf.int64)))
    steps = [step_of(task, k, *variables[k]) for k in range(2)]
    several = [
        rows.Rows([0.0], count.device, f"test-{k}") for k, (_, count) in enumerate(variables)
    ]
    aborts.watch(hosts)
    training.SOON = math.inf  # no read comes between the calls, with the same number
    target, first = servers[-1].target, None if out_of_order else task.first
    with aborts.Connection(target, task.config, first=first) as session:
        session.run(tf.global_variables_initializer())
        for step in steps:
            step.prepare(session, True)
            call(step.run)
            step.write()  # what it measured has been read
        works = [step.run for step in steps]
        if read:
            works = [functools.partial(rows.read_all, [each], session) for each in several]
            session.run([each.put for each in several])
        SEEDS.fix_seed(7)
        call(works[1])
        other = threading.Thread(target=call, args=[works[0]])
        other.start()
        if out_of_order:
            other.join(SECONDS)
            print("waits" if other.is_alive() else "does not wait", flush=True)
            if read:
                SEEDS.free_seed()  # it is repeated
            say_it_is_blocked()
        other.join()
        SEEDS.free_seed()
        call(works[0])  # the session can be used as before


if __name__ == "__main__":
    main("--out_of_order" in sys.argv, "--read" in sys.argv)
