"""Several steps in one call are the same steps, even if the call fails in the middle."""

import argparse
import threading
import types

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from common.graph import clock
from common.graph.aborts import Connection
from common.launch import network
from common.record import trace
from common.records import Pull, Update
from common.training.measured import Replica
from common.training.several import copies
from common.training.steps import Step

tf.disable_eager_execution()
COUNT = 4  # steps per call


def step_of(limit: int, ps: str = "", worker: str = "", fault: int = -1, resource: bool = True):
    """Makes a step that reads v from a ps, computes 3 v + k here in a loop, and writes it back. The
    local variable k counts the steps of this process; the loop also takes numbers from a pipeline.
    The update with the number `fault` fails.

    Returns:
        step, two rows (on the ps: v and the number of the update; here: k and the sum of the
        numbers taken), the update, initialisers
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
        here = tf.stack([tf.cast(value, tf.float64) for value in (kept, drawn)])
    with tf.device(ps):
        arrived = tf.identity(made)
        counted_at = clock.now([arrived])
        with tf.control_dependencies([counted_at]):
            number = tf.raw_ops.ResourceCountUpTo(resource=count.handle, limit=limit, T=tf.int64)
        with tf.control_dependencies([tf.debugging.Assert(tf.not_equal(number, fault), [number])]):
            put = v.assign(arrived)
        there = tf.stack([tf.cast(value, tf.float64) for value in (pulled, number)])
    inits = [v.initializer, count.initializer, k.initializer, numbers.initializer]
    return tf.group(put, kept), [there, here], Update(number, counted_at), inits


def expected(steps: int) -> list[tuple]:
    v, rows = 1.0, []
    for k in range(steps):
        rows.append((v, k, k + 1, 9 * k + 3))
        v = np.float32(3 * v + k)
    return rows


def cluster() -> tuple[str, tuple[str, str]]:
    """Starts a ps and a worker in this process; returns the session's target and their devices."""
    ports = network.free_ports(2, False)
    hosts = {job: [f"localhost:{port}"] for job, port in zip(("ps", "worker"), ports)}
    servers = [tf.train.Server(hosts, job, 0) for job in hosts]
    return servers[1].target, ("/job:ps/task:0", "/job:worker/task:0")


def noted(row: tf.Tensor) -> tuple[tf.Operation, tf.Tensor]:
    """Returns an operation that stores a row on its device, and all rows, [rows, ...]."""
    with tf.device(row.device):
        queue = tf.FIFOQueue(-1, row.dtype, [row.shape], shared_name=f"rows/{row.name}")
        return queue.enqueue(row), queue.dequeue_many(queue.size())


def chained(step: tf.Operation, rows) -> tuple[list[tf.Operation], list[tf.Tensor]]:
    """Returns what a call runs, and what reads the rows of its steps."""
    puts, reads = zip(*map(noted, rows))
    parts = step.control_inputs or [step]
    last = copies(list(parts), list(puts), COUNT)[-1]
    return [last[end] for end in (*parts, *puts)], list(reads)


@pytest.mark.parametrize(("distributed", "resource"), [(False, True), (True, True), (False, False)])
def test_the_steps_are_the_same_and_the_last_may_be_inside_a_call(distributed, resource):
    target, places = cluster() if distributed else ("", ())
    limit, rows = 3 * COUNT + 2, []
    with tf.Graph().as_default(), tf.Session(target) as session:
        step, kept, _, inits = step_of(limit, *places, resource=resource)
        call, reads = chained(step, kept)
        session.run(inits)
        for _ in range(3):
            session.run(call)
            together = session.run(reads)
            assert [len(part) for part in together] == [COUNT] * 2
            rows.extend(map(np.concatenate, zip(*together)))
        with pytest.raises(tf.errors.OutOfRangeError):
            session.run(call)
        rows.extend(map(np.concatenate, zip(*session.run(reads))))  # from the failed call
    np.testing.assert_allclose(rows, expected(limit), rtol=1e-5)


def test_rows_from_before_a_fault_do_not_count_as_later_steps(tmp_path):
    """As in a run: a call fails, and training continues in a new session."""
    target, places = cluster()
    fault = 2 * COUNT + 3
    flags = argparse.Namespace(
        steps_per_execution=COUNT, results=str(tmp_path), batch_size=1, workers=1, steps=100
    )
    with tf.Graph().as_default():
        task = types.SimpleNamespace(device=places[1], hosts={}, flags=flags, first=tf.no_op())
        step, (there, here), update, inits = step_of(10 * COUNT, *places, fault=fault)
        # Stand-ins for these in the events.
        loss, pull = there[0], Pull([], [], tf.cast(here[0], tf.int64), update.counted_at)
        training = Step(task, 0, [Replica(step, loss, pull, update=update)])
        with Connection(target, None) as session:
            session.run(inits)
            training.prepare(session, True)
            with pytest.raises(tf.errors.InvalidArgumentError):
                while True:
                    training.run()
        with Connection(target, None) as session:
            session.run(inits[-1])  # the failed call may have cancelled the pipeline
            training.prepare(session, True)
            training.run()
            training.run()
            training.write()
    (events,) = trace.read_events(tmp_path, 1)
    steps = [event["global_step"] for event in events]
    first = steps.index(fault + 2)
    # The session's end loses unread rows: at most 0.1 s of them.
    assert steps[:first] == list(range(1, first + 1)) and first <= fault
    assert steps[first:] == list(range(fault + 2, fault + 2 + 2 * COUNT))
    after = events[first:]
    v = expected(fault + 1)[fault][0]  # the failed step changed nothing on the ps
    k = after[0]["pulled_at"] - 1
    assert k in (fault, fault + 1)
    for event in after:
        assert event["loss"] == pytest.approx(v, rel=1e-5)
        assert event["pulled_at"] == k + 1
        v, k = np.float32(3 * v + k), k + 1


def called(step, row, calls: int) -> np.ndarray:
    """[steps, ...]: the row of each step."""
    call, reads = chained(step, [row])
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for _ in range(calls):
            session.run(call)
        return session.run(reads)[0]


def dropped(seed) -> tf.Tensor:
    """A mask of zeros and twos, as in dropout."""
    return tf.nn.dropout(tf.ones([60]), rate=0.5, seed=seed)


def in_a_loop(draw) -> tf.Tensor:
    """[3, 60]: the random numbers of three iterations."""
    masks = tf.TensorArray(tf.float32, 3)
    _, masks = tf.while_loop(
        lambda t, _: t < 3, lambda t, masks: (t + 1, masks.write(t, draw())), [0, masks]
    )
    return masks.stack()


DRAWS = {
    "plain": lambda seed: dropped(seed)[tf.newaxis],
    "loop": lambda seed: in_a_loop(lambda: dropped(seed)),
    "loop in a loop": lambda seed: tf.reshape(
        in_a_loop(lambda: in_a_loop(lambda: dropped(seed))), [9, 60]
    ),
    "branch": lambda seed: tf.cond(
        tf.constant(1) > 0, lambda: in_a_loop(lambda: dropped(seed)), lambda: tf.zeros([3, 60])
    ),
    "case": lambda seed: tf.switch_case(tf.constant(1), {
        0: lambda: tf.zeros([3, 60]), 1: lambda: in_a_loop(lambda: dropped(seed))}),
    "function": lambda seed: tf.function(lambda: in_a_loop(lambda: dropped(seed)))(),
}  # fmt: skip


@pytest.mark.parametrize("where", DRAWS)
@pytest.mark.parametrize(("graph_seed", "seed"), [(None, None), (7, None), (None, 3), (7, 3)])
def test_no_two_steps_draw_the_same_mask(where, graph_seed, seed):
    """Three calls, four copies, three iterations: a plain graph import would repeat the seeds."""
    with tf.Graph().as_default():
        tf.set_random_seed(graph_seed)
        masks = DRAWS[where](seed)
        drawn = called(masks.op, masks, 3).reshape(-1, 60)
    assert len(drawn) == 3 * COUNT * masks.shape[0]
    assert set(np.unique(drawn)) == {0, 2}
    assert len({tuple(mask) for mask in drawn}) == len(drawn)


def counting(tmp_path, amount, more=lambda step, now: ()):
    """Makes a step that adds an amount to a variable, ready to run.

    Returns:
        the session, the `Step`, its operation, the variable, its value after the step, and what
        `more` computes from the operation and this value
    """
    flags = argparse.Namespace(
        steps_per_execution=COUNT, results=str(tmp_path), batch_size=1, workers=1, steps=100
    )
    task = types.SimpleNamespace(device="", hosts={}, flags=flags, first=tf.no_op())
    k = tf.Variable(0.0, use_resource=True)
    made = k.assign_add(amount, read_value=False)
    with tf.control_dependencies([made]):
        now = k.read_value()
        number = tf.cast(now, tf.int64) - 1
        update = Update(number, clock.now([number]))
    step = tf.group(now)
    made = more(step, now)
    training = Step(task, 0, [Replica(step, now, update=update)])
    session = Connection("", None)
    session.run(k.initializer)
    training.prepare(session, True)
    return session, training, step, k, now, *made


def test_values_computed_from_a_step_come_from_the_last_one(tmp_path):
    """Also values that the step does not need: a measure, or a tensor that waits for the step."""

    def more(step, now):
        tenfold = 10 * now
        with tf.control_dependencies([step]):
            return tenfold, tf.identity(tenfold) + 1

    with tf.Graph().as_default():
        session, training, *fetches = counting(tmp_path, 1.0, more)
        with session:
            for call in (1, 2, 3):
                _, k, now, tenfold, later = training.run(training.last(fetches))
                assert (now, tenfold, later) == (COUNT * call, 10 * now, 10 * now + 1)
                assert k in range(COUNT * (call - 1), COUNT * call + 1)  # read at any time
            training.write()
    (events,) = trace.read_events(tmp_path, 1)
    assert [event["global_step"] for event in events] == list(range(1, 3 * COUNT + 1))


def test_a_step_does_not_wait_until_its_rows_are_read(tmp_path):
    """Over a slow link, that takes as long as a part of a step."""
    with tf.Graph().as_default():
        session, training, *_ = counting(tmp_path, 1.0)
        free, run = threading.Event(), session.run

        def slow(*fetches):
            assert free.wait(60)
            return run(*fetches)

        with session:
            session.run = slow  # a step is a callable instead
            for _ in range(3):
                training.run()
            (events,) = trace.read_events(tmp_path, 1)
            assert not events
            free.set()
            training.run()
            training.write()
    (events,) = trace.read_events(tmp_path, 1)
    assert [event["loss"] for event in events] == list(range(1, 4 * COUNT + 1))


@pytest.mark.parametrize("default", [False, True])
def test_all_steps_get_the_fed_values(tmp_path, default):
    with tf.Graph().as_default():
        fed = tf.placeholder_with_default(1.0, []) if default else tf.placeholder(tf.float32, [])
        session, training, *_ = counting(tmp_path, fed)
        with session:
            training.run(more=({fed: 5.0}, None, None))
            training.write()
    (events,) = trace.read_events(tmp_path, 1)
    assert [event["loss"] for event in events] == [5, 10, 15, 20]
