"""The data: which part of it a worker gets, and how it draws batches."""

import time

import numpy as np
import tensorflow.compat.v1 as tf

from common import datasets
from common.training import graphs


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


@graphs.scope("data")
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
    next_numbers = _next(numbers, numbers.element_spec, flags, worker)  # the first is there at once

    @graphs.scope("batch")
    def next_batch():
        chosen = next_numbers()
        return scaled(tf.gather(all_x, chosen)), tf.gather(all_labels, chosen)

    return next_batch


def pipeline(dataset, flags, worker: int = 0, threads: int = 1):
    """Turns any `tf.data.Dataset` into a function that makes its next element; applies `--delay`.

    An element keeps its structure and kinds: tuples, dictionaries, sparse and ragged tensors. The
    dataset should repeat forever; `is_end` recognises the error of a step that finds no element.

    It prepares elements in `threads` threads of its own, up to 8 in advance. The initialisation
    waits for the first one, which may take long (a shuffle buffer is filled, a file is read): no
    worker starts to train before all have one, so that none pulls parameters which are old when
    its batch arrives.
    """
    with tf.device("/cpu:0"):  # of this task
        source = tf.data.make_initializable_iterator(dataset.with_options(_options(threads)))
        with tf.control_dependencies([source.initializer]):
            first = source.get_next_as_optional()  # an optional is empty after the last element

        def following(_):
            return source.get_next_as_optional()

        def is_there(optional):
            return optional.has_value()

        def parts(optional):
            return _parts(optional.get_value())

        rest = tf.data.Dataset.counter().map(following)
        optionals = tf.data.Dataset.from_tensors(first).concatenate(rest)
        elements = optionals.take_while(is_there).map(parts)
    return _next(elements, dataset.element_spec, flags, worker)


def is_end(error: tf.errors.OutOfRangeError) -> bool:
    """Whether a step found no element in its `pipeline`. If not, the run has made all its steps:
    then `session.next_update` raises this error, too."""
    return "End of sequence" in error.message


def _options(threads: int) -> tf.data.Options:
    options = tf.data.Options()
    options.threading.private_threadpool_size = threads
    options.autotune.enabled = False
    return options


def _parts(element) -> list[tf.Tensor]:
    """The tensors that make up an element: three for a sparse tensor, two or more for a ragged."""
    parts = tf.nest.flatten(element, expand_composites=True)
    return [part for part in parts if part is not None]


def _next(parts, structure, flags, worker: int):
    """Makes the function that makes the next element, of this `structure`, from the dataset of its
    `parts`.

    A step takes an element in its own thread: switching to another, as `iterator.get_next()` does,
    costs as much as a small gradient. TensorFlow offers that only as a raw operation.
    """
    specs = tf.nest.flatten(parts.element_spec)
    kind = {
        "output_types": [spec.dtype for spec in specs],
        "output_shapes": [spec.shape for spec in specs],
    }
    with tf.device("/cpu:0"):  # of this task
        elements = tf.data.experimental.to_variant(parts.prefetch(8).with_options(_options(1)))
        iterator = tf.raw_ops.IteratorV2(shared_name="", container="", **kind)
        start = tf.raw_ops.MakeIterator(dataset=elements, iterator=iterator)
    tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, start)  # run by tf.tables_initializer
    seconds = (flags.delay or {}).get(worker)

    def next_element():
        late = [tf.numpy_function(lambda: time.sleep(seconds), [], [])] if seconds else []
        with tf.device("/cpu:0"), tf.control_dependencies(late):
            found = tf.raw_ops.IteratorGetNextSync(iterator=iterator, name="next_element", **kind)
        return tf.nest.pack_sequence_as(structure, found, expand_composites=True)

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
