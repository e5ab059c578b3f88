"""Several steps in one call are the same steps, also when the call breaks off in the middle."""

import argparse
import types

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from common.launch import network, record
from common.training import clocks
from common.training.several import Several
from common.training.steps import Replica, Step

tf.disable_eager_execution()
COUNT = 4  # steps in one call


def step_of(limit: int, ps: str = "", worker: str = "", fault: int = -1, resource: bool = True):
    """Takes v from a ps, makes 3 v + k of it here in a loop, where k counts the steps of this
    process in its own variable, and puts it back; the loop also draws a number of a pipeline.
    The update with the number `fault` fails.

    Returns:
        step, two rows (there v and the number of the update, here k and the sum of what was
        drawn), the number, initialisers
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
        counted_at = clocks.now([arrived])
        with tf.control_dependencies([counted_at]):
            number = tf.raw_ops.ResourceCountUpTo(resource=count.handle, limit=limit, T=tf.int64)
        with tf.control_dependencies([tf.debugging.Assert(tf.not_equal(number, fault), [number])]):
            put = v.assign(arrived)
        there = tf.stack([tf.cast(value, tf.float64) for value in (pulled, number)])
    clocks.note("counted", number, counted_at)
    inits = [v.initializer, count.initializer, k.initializer, numbers.initializer]
    return tf.group(put, kept), [there, here], number, inits


def expected(steps: int) -> list[tuple]:
    v, rows = 1.0, []
    for k in range(steps):
        rows.append((v, k, k + 1, 9 * k + 3))
        v = np.float32(3 * v + k)
    return rows


def cluster() -> tuple[str, tuple[str, str]]:
    """A ps and a worker in this process: the session's target, and their devices."""
    ports = network.free_ports(2, False)
    hosts = {job: [f"localhost:{port}"] for job, port in zip(("ps", "worker"), ports)}
    servers = [tf.train.Server(hosts, job, 0) for job in hosts]
    return servers[1].target, ("/job:ps/task:0", "/job:worker/task:0")


@pytest.mark.parametrize(("distributed", "resource"), [(False, True), (True, True), (False, False)])
def test_the_steps_are_the_same_and_the_last_one_may_come_in_the_middle(distributed, resource):
    target, places = cluster() if distributed else ("", ())
    limit, rows = 3 * COUNT + 2, []
    with tf.Graph().as_default(), tf.Session(target) as session:
        step, noted, number, inits = step_of(limit, *places, resource=resource)
        several = Several(step, noted, COUNT, "test")
        call = several.last(step), several.last(number), several.noted
        session.run(inits)
        several.forget(session)
        with pytest.raises(tf.errors.OutOfRangeError):
            while True:
                _, last, together = session.run(call)
                assert [len(row) for row in together] == [COUNT] * 2
                rows.extend(map(np.concatenate, zip(*together)))
                assert last == len(rows) - 1
        assert len(rows) == 3 * COUNT
        rows.extend(map(np.concatenate, zip(*several.left(session))))  # of the call that broke off
        assert [len(row) for row in several.left(session)] == [0, 0]
    np.testing.assert_allclose(rows, expected(limit), rtol=1e-5)


def test_what_a_fault_has_left_behind_is_not_taken_for_later_steps(tmp_path):
    """As in a run: a call ends with an error, and training goes on in a new session."""
    target, places = cluster()
    fault = 2 * COUNT + 3
    flags = argparse.Namespace(steps_per_execution=COUNT, results=str(tmp_path))
    task = types.SimpleNamespace(device=places[1], flags=flags)
    with tf.Graph().as_default():
        step, (there, here), number, inits = step_of(10 * COUNT, *places, fault=fault)
        loss, pulled_at = there[0], tf.cast(here[0], tf.int64)  # they stand in the events as such
        training = Step(task, 0, [Replica(step, loss, number, pulled_at)])
        with tf.Session(target) as session:
            session.run(inits)
            training.prepare(session)
            with pytest.raises(tf.errors.InvalidArgumentError):
                while True:
                    training.run()
        with tf.Session(target) as session:
            session.run(inits[-1])  # the pipeline may have been cancelled with the call
            training.prepare(session)
            training.run()
            training.run()
        training.flush()
    (events,) = record.read_events(tmp_path, 1)
    before, after = events[: 2 * COUNT], events[2 * COUNT :]
    assert [event["global_step"] for event in before] == list(range(1, 2 * COUNT + 1))
    assert [event["global_step"] - fault - 2 for event in after] == list(range(2 * COUNT))
    v = expected(fault + 1)[fault][0]  # the step that failed changed nothing on the ps
    k = after[0]["pulled_at"] - 1
    assert k in (fault, fault + 1)
    for event in after:
        assert event["loss"] == pytest.approx(v, rel=1e-5)
        assert event["pulled_at"] == k + 1
        v, k = np.float32(3 * v + k), k + 1


def called(step, row, calls: int) -> np.ndarray:
    """[calls, COUNT, ...]: the row of each step."""
    several = Several(step, [row], COUNT, "called")
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        return np.stack([
            session.run([several.last(step), *several.noted])[1] for _ in range(calls)
        ])  # fmt: skip


def dropped(seed) -> tf.Tensor:
    """A mask of zeros and twos, as of a dropout."""
    return tf.nn.dropout(tf.ones([60]), rate=0.5, seed=seed)


def in_a_loop(draw) -> tf.Tensor:
    """[3, 60]: what is drawn in three iterations."""
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
    """Three calls, four copies, three iterations: an import copies seeds as they are."""
    with tf.Graph().as_default():
        tf.set_random_seed(graph_seed)
        masks = DRAWS[where](seed)
        drawn = called(masks.op, masks, 3).reshape(-1, 60)
    assert len(drawn) == 3 * COUNT * masks.shape[0]
    assert set(np.unique(drawn)) == {0, 2}
    assert len({tuple(mask) for mask in drawn}) == len(drawn)


def test_what_is_computed_from_a_step_is_that_of_the_last():
    """Also what the step itself does not need: a measure, or a tensor that waits for the step."""
    with tf.Graph().as_default(), tf.Session() as session:
        k = tf.Variable(0, use_resource=True)
        made = k.assign_add(1, read_value=False)
        with tf.control_dependencies([made]):
            now = k.read_value()
            step = tf.group(now)
        tenfold = 10 * now
        with tf.control_dependencies([step]):
            later = tf.identity(tenfold) + 1
        several = Several(step, [tf.stack([now])], COUNT, "last")
        session.run(k.initializer)
        fetches = [several.last(x) for x in (step, now, tenfold, later, k)]
        for call in (1, 2, 3):
            _, *values, _ = session.run([*fetches, several.noted])[:5]
            assert values == [COUNT * call, 10 * COUNT * call, 10 * COUNT * call + 1]


@pytest.mark.parametrize("default", [False, True])
def test_what_is_fed_is_fed_to_all_steps(default):
    with tf.Graph().as_default(), tf.Session() as session:
        total = tf.Variable(0.0, use_resource=True)
        fed = tf.placeholder_with_default(1.0, []) if default else tf.placeholder(tf.float32, [])
        made = total.assign_add(fed, read_value=False)
        with tf.control_dependencies([made]):
            row = tf.stack([total.read_value()])
        several = Several(made, [row], COUNT, "fed")
        session.run(total.initializer)
        _, (rows,) = session.run([several.last(made), several.noted], {fed: 5.0})
    assert rows.ravel().tolist() == [5, 10, 15, 20]
