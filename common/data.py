"""The data: which part of it a worker gets, and how it draws batches."""

import time

import numpy as np
import tensorflow.compat.v1 as tf

from common import datasets
from common.graph.scope import scope


def load(flags, part: str, worker: int = 0, workers: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """One worker's shard of the training set, or of the test set.

    Args:
        flags: the command line.
        part: `train` or `test`.
        worker: whose shard: examples worker, worker + workers, worker + 2 workers, ...
        workers: how many workers share the set.

    Returns:
        x [examples, ...] (float32, or bytes for downloaded images) and labels [examples], int64.
    """
    x, labels = datasets.reader(flags.data).load(flags, part)
    if part == "train" and (shard := datasets.only_shard(flags)):
        datasets.reader(flags.data).check_shard(flags, shard, worker, workers)
        worker, workers = 0, 1
    return np.ascontiguousarray(x[worker::workers]), labels[worker::workers].astype(np.int64)


def scaled(x: tf.Tensor) -> tf.Tensor:
    """Scales image bytes to floats in [0, 1]; leaves anything else unchanged."""
    return tf.cast(x, tf.float32) / 255 if x.dtype == tf.uint8 else x


@scope("data")
def batches(flags, worker: int = 0, workers: int = 1, examples=None):
    """Batches of this worker's shard of `--data`, or of `examples` (x, labels), on this device.

    A local variable holds the examples. The pipeline delivers their indices, reshuffled in every
    epoch (in order with `--batch_size 0`), and a batch gathers the examples at those indices.

    Returns:
        A function without arguments that makes the tensors of a new batch, x [batch, ...] and
        labels [batch]; inside a loop, each iteration gets a new batch.
    """
    x, labels = examples or load(flags, "train", worker, workers)
    size = flags.batch_size or len(labels)
    # A function in this process provides the value: a constant would travel inside the graph.
    local = {"trainable": False, "collections": [tf.GraphKeys.LOCAL_VARIABLES]}
    all_x, all_labels = (
        tf.Variable(lambda a=a: tf.ensure_shape(tf.numpy_function(lambda: a, [], a.dtype), a.shape),
                    **local)
        for a in (x, labels)
    )  # fmt: skip
    if flags.batch_size:
        numbers = shuffled(len(labels), size, flags.seed + 1000 * worker)
    else:
        numbers = tf.data.Dataset.range(len(labels)).batch(size, drop_remainder=True).repeat()
    next_numbers = pipeline(numbers, flags, worker)

    @scope("batch")
    def next_batch():
        chosen = next_numbers()
        return scaled(tf.gather(all_x, chosen)), tf.gather(all_labels, chosen)

    return next_batch


def pipeline(dataset, flags, worker: int = 0, threads: int = 1):
    """Turns any `tf.data.Dataset` into a function that makes its next element; applies `--delay`.

    The dataset must repeat forever. It prepares elements in `threads` threads of its own. A step
    takes them in its own thread: switching to another, as `iterator.get_next()` does, costs as
    much as a small gradient.
    """
    options = tf.data.Options()
    options.threading.private_threadpool_size = threads
    options.autotune.enabled = False
    kinds = tf.nest.flatten(tf.data.get_output_types(dataset), expand_composites=True)
    shapes = tf.nest.flatten(tf.data.get_output_shapes(dataset), expand_composites=True)
    kind = {"output_types": kinds, "output_shapes": shapes}
    with tf.device("/cpu:0"):  # of this task
        elements = tf.data.experimental.to_variant(dataset.prefetch(8).with_options(options))
        iterator = tf.raw_ops.IteratorV2(shared_name="", container="", **kind)
        start = tf.raw_ops.MakeIterator(dataset=elements, iterator=iterator)
    tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, start)  # run by tf.tables_initializer
    seconds = (flags.delay or {}).get(worker)

    def next_element():
        late = [tf.numpy_function(lambda: time.sleep(seconds), [], [])] if seconds else []
        with tf.device("/cpu:0"), tf.control_dependencies(late):
            parts = tf.raw_ops.IteratorGetNextSync(iterator=iterator, **kind)
        return tf.nest.pack_sequence_as(tf.data.get_output_types(dataset), parts)

    return next_element


def shuffled(examples: int, size: int, seed: int):
    """A `tf.data.Dataset` of batches [size] of example indices, reshuffled in every epoch.

    It shuffles a whole epoch at once: handling indices one by one would take a large part of a
    small step's time.
    """

    def shuffle(epoch):
        numbers = tf.range(examples, dtype=tf.int64)
        return tf.random.experimental.stateless_shuffle(numbers, [seed, tf.cast(epoch, tf.int32)])

    epochs = tf.data.Dataset.range(2**31 - 1).map(shuffle)
    return epochs.rebatch(size, drop_remainder=True).repeat()
