"""Tables of embeddings: only the rows that a batch names travel, and only these are trained."""

import argparse
import collections
import re

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from common import copies, session
from common.launch import network
from common.training import checks

tf.disable_eager_execution()
ROWS, WIDTH, RATE, START = 10, 3, 0.1, 0.5
BATCHES = [[[0, 9], [9, 9], [4, 5]], [[3, 3]], [[1, 0], [9, 2]], [[6, 5]]]


@pytest.fixture(scope="module")
def places() -> tuple[str, tf.train.ClusterSpec]:
    """The session's target and the cluster: two ps and a worker in this process."""
    addresses = [f"127.0.0.1:{port}" for port in network.free_ports(3, False)]
    cluster = tf.train.ClusterSpec({"ps": addresses[:2], "worker": addresses[2:]})
    tasks = [("ps", 0), ("ps", 1), ("worker", 0)]
    return [tf.train.Server(cluster, *each) for each in tasks][-1].target, cluster


class Graph:
    """A step on a table and two dense parameters: the loss is linear in the rows' sums."""

    def __init__(self, cluster, blocks: int | None, optimizer):
        self.start = np.arange(ROWS * WIDTH, dtype="f").reshape(ROWS, WIDTH) / 7
        with tf.device(tf.train.replica_device_setter(cluster=cluster)):
            self.dense = [tf.Variable(tf.fill([WIDTH, 2], START)), tf.Variable(tf.zeros([2]))]
            self.table = tf.get_variable(
                "table",
                [ROWS, WIDTH],
                initializer=lambda shape, partition_info=None, **_: self._part(
                    shape, partition_info
                ),
                partitioner=blocks and tf.fixed_size_partitioner(blocks),
            )
            global_step = tf.train.create_global_step()
        self.ids = tf.placeholder(tf.int64, [None, 2])
        with tf.device("/job:worker/task:0"):
            rows = copies.rows(self.table, self.ids)
            pull = copies.pull(self.dense, global_step, rows=[rows])
            found = tf.gather(pull.w[2], rows.where)
            self.loss = tf.reduce_sum(
                tf.matmul(tf.reduce_sum(found, 1) ** 2, pull.w[0]) + pull.w[1]
            )
            push = copies.send(tf.gradients(self.loss, pull.w), self.dense, rows=[rows])
        flags = argparse.Namespace(steps=100)
        with session.next_update(global_step, flags, push) as update:
            variables = [*self.dense, *([self.table] if blocks is None else self.table)]
            self.step = optimizer().apply_gradients(zip(push.values, variables))
        checks.check_update(variables, global_step, self.step, update, [push])

    def _part(self, shape, info):
        first = info.var_offset[0] if info else 0
        return tf.constant(self.start[first : first + shape[0]])


def expected(graph: Graph, adagrad: bool) -> np.ndarray:
    """The table after all batches, in NumPy."""
    table, dense = graph.start.astype("d"), np.full([WIDTH, 2], START)
    squares, squares_of_dense = np.full(table.shape, 0.1), np.full(dense.shape, 0.1)
    for batch in BATCHES:
        sums = table[batch].sum(1)
        g, g_dense = np.zeros_like(table), (sums**2).T @ np.ones([len(batch), 2])
        for ids, each in zip(batch, 2 * sums * dense.sum(1)):
            for one in ids:
                g[one] += each
        if adagrad:
            squares, squares_of_dense = squares + g**2, squares_of_dense + g_dense**2
            g, g_dense = g / np.sqrt(squares), g_dense / np.sqrt(squares_of_dense)
        table, dense = table - RATE * g, dense - RATE * g_dense
    return table


@pytest.mark.parametrize("blocks", [None, 2, 3, 5])
@pytest.mark.parametrize("adagrad", [False, True])
def test_the_named_rows_are_trained_and_no_other(places, blocks, adagrad):
    """One row may be named many times in a batch; row 7 and 8 are never named."""
    target, cluster = places

    def optimizer():
        kind = tf.train.AdagradOptimizer if adagrad else tf.train.GradientDescentOptimizer
        return kind(RATE)

    with tf.Graph().as_default():
        graph = Graph(cluster, blocks, optimizer)
        with tf.Session(target) as sess:
            sess.run(tf.global_variables_initializer())
            for batch in BATCHES:
                sess.run(graph.step, {graph.ids: batch})
            found = sess.run(tf.convert_to_tensor(graph.table))
    wanted = expected(graph, adagrad)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())
    np.testing.assert_array_equal(found[7:9], graph.start[7:9])


@pytest.mark.parametrize("ids", [[[0, ROWS]], [[-1, 0]]])
def test_another_row_is_refused(places, ids):
    target, cluster = places
    with tf.Graph().as_default():
        graph = Graph(cluster, 2, lambda: tf.train.GradientDescentOptimizer(RATE))
        with tf.Session(target) as sess:
            sess.run(tf.global_variables_initializer())
            with pytest.raises(tf.errors.InvalidArgumentError) as refused:
                sess.run(graph.step, {graph.ids: ids})
            wrong = max(ids[0], key=lambda row: not 0 <= row < ROWS)
            said = f"a batch names row {wrong} of table, which has rows 0 to 9"
            assert copies.outside(refused.value) == said
            before = sess.run(tf.train.get_global_step())
            assert before == 0


def transfers(metadata) -> collections.Counter:
    """(from, to) -> how many tensors travel in a step, between different tasks."""
    found = collections.Counter()
    for graph in metadata.partition_graphs:
        for node in graph.node:
            if node.op == "_Send":
                ends = [node.attr[f"{end}_device"].s.decode() for end in ("send", "recv")]
                tasks = [re.search(r"/job:(\w+)/replica:0/task:(\d)", end) for end in ends]
                source, target = (task[1] + task[2] for task in tasks)
                found[source, target] += source != target
    return +found


@pytest.mark.parametrize("blocks", [2, 5])
def test_one_transfer_carries_the_rows_and_the_dense_part(places, blocks):
    """And two go to each ps: which rows, and their gradients with those of the dense part."""
    target, cluster = places
    with tf.Graph().as_default():
        graph = Graph(cluster, blocks, lambda: tf.train.GradientDescentOptimizer(RATE))
        with tf.Session(target) as sess:
            sess.run(tf.global_variables_initializer())
            metadata = tf.RunMetadata()
            options = tf.RunOptions(output_partition_graphs=True)
            sess.run(graph.step, {graph.ids: BATCHES[0]}, options=options, run_metadata=metadata)
    found = transfers(metadata)
    for ps in ("ps0", "ps1"):
        assert found[ps, "worker0"] == 1
        assert found["worker0", ps] == 2
    # One ps counts: it waits until all gradients are there, and the other for the number.
    assert found["ps0", "ps1"] <= 2 and found["ps1", "ps0"] <= 2


def test_what_is_not_named_is_not_read():
    """The table is never read as a whole."""
    with tf.Graph().as_default():
        graph = Graph(tf.train.ClusterSpec({"ps": ["a:1", "b:2"], "worker": ["c:3"]}), 2,
                      lambda: tf.train.GradientDescentOptimizer(RATE))  # fmt: skip
        pulled = [op for op in graph.loss.graph.get_operations() if op.type == "ResourceGather"]
        assert len(pulled) == 2  # one from each block
        whole = [op.inputs[0].op.name for op in graph.loss.graph.get_operations()
                 if op.type == "ReadVariableOp" and "pull" in op.name]  # fmt: skip
        assert whole and not any("table" in name for name in whole)


def test_a_gradient_must_be_there_for_each_table(places):
    _, cluster = places
    with tf.Graph().as_default():
        with tf.device(tf.train.replica_device_setter(cluster=cluster)):
            table = tf.get_variable("table", [ROWS, WIDTH])
        rows = copies.rows(table, tf.constant([1, 2]))
        with pytest.raises(ValueError, match="1 values for 0 parameters and 2 tables"):
            copies.send([tf.zeros([2, WIDTH])], [], rows=[rows, rows])
        with pytest.raises(ValueError, match="table has no gradient"):
            copies.send([None], [], rows=[rows])


@pytest.mark.parametrize("worker", [0, 1])
def test_a_table_that_travels_as_a_whole_is_told_once(places, capsys, worker):
    """The first worker tells it to the screen, the others to their logs."""
    _, cluster = places
    with tf.Graph().as_default():
        with tf.device(tf.train.replica_device_setter(cluster=cluster)):
            params = [tf.get_variable("table", [ROWS, WIDTH]), tf.get_variable("bias", [WIDTH])]
            global_step = tf.train.create_global_step()
        with tf.device(f"/job:worker/task:{worker}"):
            pull = copies.pull(params, global_step)
            loss = tf.reduce_sum(tf.gather(pull.w[0], [1, 2]) + pull.w[1])
            copies.send(tf.gradients(loss, pull.w), params)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("warning: " if worker else "> warning: ")
    assert "rows of table, but all of it travels, 120 bytes each way" in line
