"""Steps in a chain are the same steps, also when it breaks in the middle."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from common.chain import LENGTH, Chain

from common.launch import network

tf.disable_eager_execution()


def step_of(limit: int, ps: str = "", worker: str = "", fault: int = -1, resource: bool = True):
    """Takes v from a ps, makes 3 v + k of it here in a loop, where k counts the steps of this
    process in a variable of its own, and puts it back; the loop also draws a number of a pipeline.
    The update with the number `fault` fails.

    Returns:
        step, what to note (there v and the number of the update, here k and the sum of what was
        drawn), initialisers
    """
    with tf.device(ps):
        v = tf.Variable(1.0, use_resource=resource)
        count = tf.Variable(0, dtype=tf.int64, use_resource=True)
        pulled = 1 * v.read_value()  # a copy
    with tf.device(worker):
        k = tf.Variable(0.0, use_resource=resource)
        numbers = tf.data.make_initializable_iterator(tf.data.Dataset.range(10**6))

        def body(i, x, drawn):
            return i + 1, x + pulled, drawn + numbers.get_next()

        start = 0, k.read_value(), tf.constant(0, tf.int64)
        _, made, drawn = tf.while_loop(lambda i, *_: i < 3, body, start)
        with tf.control_dependencies([made]):
            kept = 1 * k.assign_add(1)
    with tf.device(ps):
        arrived = tf.identity(made)
        with tf.control_dependencies([arrived]):
            number = tf.raw_ops.ResourceCountUpTo(resource=count.handle, limit=limit, T=tf.int64)
        with tf.control_dependencies([tf.debugging.Assert(tf.not_equal(number, fault), [number])]):
            put = v.assign(arrived)
    step = tf.group(put, kept)
    inits = [v.initializer, count.initializer, k.initializer, numbers.initializer]
    return step, [[pulled, number], [kept, drawn]], inits


def expected(steps: int) -> list[tuple]:
    v, rows = 1.0, []
    for k in range(steps):
        rows.append((v, k, k + 1, 9 * k + 3))
        v = np.float32(3 * v + k)
    return rows


@pytest.mark.parametrize(("distributed", "resource"), [(False, True), (True, True), (False, False)])
def test_a_chain_makes_the_same_steps_and_may_break(distributed, resource):
    target, places = "", ()
    if distributed:
        ports = network.free_ports(2, False)
        hosts = {job: [f"localhost:{port}"] for job, port in zip(("ps", "worker"), ports)}
        servers = [tf.train.Server(hosts, job, 0) for job in hosts]
        target, places = servers[1].target, ("/job:ps/task:0", "/job:worker/task:0")
    limit, rows = 3 * LENGTH + 5, []
    with tf.Graph().as_default(), tf.Session(target) as session:
        step, values, inits = step_of(limit, *places, resource=resource)
        chain = Chain(step, values, "test")
        session.run(inits)
        chain.prepare(session)
        longest = 0
        with pytest.raises(tf.errors.OutOfRangeError):
            while True:
                before = len(rows)
                for row in chain.run():
                    rows.append(np.concatenate(row))  # also those of the chain that breaks
                longest = max(longest, len(rows) - before)
    np.testing.assert_allclose(rows, expected(limit), rtol=1e-5)
    assert longest == LENGTH


def test_what_a_fault_has_left_behind_is_not_taken_for_later_steps():
    fault, rows = 2 * LENGTH + 3, []
    with tf.Graph().as_default(), tf.Session() as session:
        step, values, inits = step_of(10 * LENGTH, fault=fault)
        chain = Chain(step, values, "fault")
        session.run(inits)
        chain.prepare(session)
        with pytest.raises(tf.errors.InvalidArgumentError):
            while True:
                rows.extend(map(np.concatenate, chain.run()))
        assert 0 < len(rows) <= fault
        rows.clear()
        # A run that is cancelled may cancel the pipeline with it; a recovery initialises it anew.
        session.run(inits[-1])
        while len(rows) < 2 * LENGTH:
            rows.extend(map(np.concatenate, chain.run()))
    v, k = expected(fault + 1)[fault][::2]  # the step that failed changed nothing on the ps
    assert rows[0][1] == fault + 1
    k = rows[0][2] - 1
    assert k in (fault, fault + 1)
    for i, row in enumerate(rows):
        np.testing.assert_allclose(row[:3], (v, fault + 1 + i, k + 1), rtol=1e-5)
        v, k = np.float32(3 * v + k), k + 1
    assert set(np.diff([row[3] for row in rows])) == {9}
