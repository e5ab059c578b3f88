"""How stale is a row? A count of its updates lies beside each row, on its ps."""

import re
from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from common import copies
from common.records import Pull, Rows


class Times:
    """How often each row of a table has been updated: int32 [rows], cut as the table is.

    Exact if each ps has one thread, as `Pull.count` is: then a row and its count are read back to
    back, and changed back to back. With more threads, now and then a count is off by one.

    Attributes:
        now: after `count`, how often each row that it counts had been updated before, by block (a
            test compares it with a replay).
    """

    def __init__(self, table):
        blocks = copies.blocks_of(table)

        def beside(op: tf.Operation) -> str:
            part = re.search(r"part_(\d+)", op.name)
            return blocks[int(part[1]) if part else 0].device

        with tf.device(beside):
            counts = tf.get_variable(
                "updates", [sum(block.shape[0] for block in blocks)], tf.int32,
                tf.zeros_initializer(), trainable=False,
                partitioner=tf.fixed_size_partitioner(len(blocks)) if len(blocks) > 1 else None,
            )  # fmt: skip
        self._counts = copies.blocks_of(counts)
        self.now: list[tf.Tensor] = []

    def read(self, rows: Rows, pull: Pull) -> list[tf.Tensor]:
        """How often these rows had been updated when they were pulled: one tensor per block, on its
        ps. `rows` are those of the last table of the pull."""
        found = []
        pulled = pull.on_ps[-len(rows.blocks) :]
        for counts, numbers, values in zip(self._counts, rows.numbers, pulled, strict=True):
            with tf.device(counts.device), tf.control_dependencies([values]):
                found.append(tf.gather(counts, numbers))
        return found

    def count(self, rows: Rows, seen: Sequence[tf.Tensor]) -> dict[str, list[tf.Tensor]]:
        """Counts this update, and returns what its event says: `rows`, how many it changes, and
        `row_staleness`, how many updates by others these have had since they were pulled, all
        together."""
        sizes, stale = [], []
        for counts, numbers, before in zip(self._counts, rows.numbers, seen, strict=True):
            with tf.device(counts.device):
                now = tf.gather(counts, numbers)
                self.now.append(now)
                with tf.control_dependencies([now]):
                    added = counts.scatter_add(tf.IndexedSlices(tf.ones_like(numbers), numbers))
                with tf.control_dependencies([added]):
                    sizes.append(tf.size(numbers))
                    stale.append(tf.reduce_sum(now - before))
        return {"rows": sizes, "row_staleness": stale}
