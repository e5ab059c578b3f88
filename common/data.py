"""The data: which part of it a worker gets, and how it draws batches."""

import time
import weakref

import numpy as np
import tensorflow.compat.v1 as tf

from common import datasets
from common.graph.scope import scope

READY = 8  # elements that are made before a step takes them
END = "End of sequence"  # TensorFlow's words for a data set that has no more elements
# Graph -> of each of its data sets: what starts it again, how many elements it has, and what takes
# one between two steps.
_started_in: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


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
    many = numbers.cardinality()
    next_numbers = _next(numbers, numbers.element_spec, many, flags, worker)  # it has one at once

    @scope("batch")
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
    worker starts to train before all have one. A step's pull does not wait for its batch, so the
    first update would otherwise be computed from parameters that are old when the batch arrives.
    """
    structure, size = dataset.element_spec, dataset.cardinality()
    if any(not isinstance(spec, tf.TensorSpec) for spec in tf.nest.flatten(structure)):
        dataset = dataset.map(_parts)
    with tf.device("/cpu:0"):  # of this task
        dataset = _started(dataset.with_options(_options(threads)))
    return _next(dataset, structure, size, flags, worker)


def is_end(error: tf.errors.OutOfRangeError) -> bool:
    """Whether a step, or the initialisation, found no element in its `pipeline`. If not, the run
    has made all its steps: then `session.next_update` raises this error, too."""
    return END in error.message


def is_cut(session: tf.Session) -> bool:
    """Whether a data set of the session's graph makes no more elements. Takes some of each.

    If a call is aborted while it takes an element, TensorFlow cancels that, and the data set makes
    no more. It gives those that are ready, and the one that it was making; then it may say once
    that it is cancelled, and it seems to have ended. No step must be the one that finds out: a
    scheme that pushes before it computes may be in the middle of its update then.
    """
    takes = [take for *_, take in _started_in.get(session.graph, [])]
    try:
        for _ in range(READY + 2):
            session.run(takes)
    except (tf.errors.OutOfRangeError, tf.errors.CancelledError):
        return True
    return False


def start_again(session: tf.Session) -> bool:
    """Starts the data sets of a session's graph again that never end; returns whether all are such.
    See `is_cut`."""
    starts, sizes, _ = zip(*_started_in[session.graph])
    endless = all(size == tf.data.INFINITE_CARDINALITY for size in session.run(sizes))
    if endless:
        session.run(starts)
    return endless


def _options(threads: int) -> tf.data.Options:
    options = tf.data.Options()
    options.threading.private_threadpool_size = threads
    options.autotune.enabled = False
    return options


def _parts(*element) -> list[tf.Tensor]:
    """The tensors that make up an element: three for a sparse tensor, two or more for a ragged."""
    parts = tf.nest.flatten(element, expand_composites=True)
    return [part for part in parts if part is not None]


def _iterator(dataset) -> tuple[tf.Tensor, tf.Operation, dict]:
    """An iterator, the operation that starts it, and the types and shapes of its elements.

    These are raw operations, since only they offer `IteratorGetNextSync`, which takes an element in
    the thread of the caller. To switch to another thread, as `iterator.get_next()` does, costs as
    much as a small gradient.
    """
    specs = tf.nest.flatten(dataset.element_spec)
    kind = {
        "output_types": [spec.dtype for spec in specs],
        "output_shapes": [spec.shape for spec in specs],
    }
    iterator = tf.raw_ops.IteratorV2(shared_name="", container="", **kind)
    elements = tf.data.experimental.to_variant(dataset)
    return iterator, tf.raw_ops.MakeIterator(dataset=elements, iterator=iterator), kind


def _started(dataset):
    """A dataset of the same elements that has the first one when an iterator over it starts."""
    source, start, kind = _iterator(dataset)
    with tf.control_dependencies([start]):
        first = tf.raw_ops.IteratorGetNextSync(iterator=source, **kind)

    @tf.function(input_signature=[tf.TensorSpec([], tf.int64)], autograph=False)
    def following(number):
        return tf.raw_ops.IteratorGetNextSync(iterator=source, **kind)

    function = following.get_concrete_function()
    rest = tf.raw_ops.MapDataset(  # Dataset.map would make another error of the end of `source`
        input_dataset=tf.data.experimental.to_variant(tf.data.Dataset.counter()),
        f=function, other_arguments=function.captured_inputs,
        preserve_cardinality=False, use_inter_op_parallelism=False, **kind,
    )  # fmt: skip
    first = tf.data.Dataset.from_tensors(tuple(first))
    return first.concatenate(tf.data.experimental.from_variant(rest, first.element_spec))


def _next(dataset, structure, size: tf.Tensor, flags, worker: int):
    """Makes the function that makes the next element, of this `structure`; the elements of
    `dataset` are its parts. `size`: how many there are."""
    with tf.device("/cpu:0"):  # of this task
        iterator, start, kind = _iterator(dataset.prefetch(READY).with_options(_options(1)))
        take = tf.group(tf.raw_ops.IteratorGetNextSync(iterator=iterator, **kind))
    tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, start)  # run by tf.tables_initializer
    _started_in.setdefault(start.graph, []).append((start, size, take))
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
