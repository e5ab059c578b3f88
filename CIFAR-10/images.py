"""The input: loads images and distorts them as in TensorFlow's CIFAR-10 tutorial."""

import numpy as np
import tensorflow.compat.v1 as tf

from common import cluster, data, fail, gates
from common.datasets import cifar10
from common.told import addresses

random = tf.compat.v2.image  # has the stateless functions
SIZE, CROP = 32, 24  # width in pixels: of an image, and of the part that the network sees
CLASSES = 10


def check(flags) -> None:
    """Exits with a one-line error if a flag of this example has a bad value."""
    for name in ("batch_size", "log_frequency", "decay_steps"):
        if getattr(flags, name) < 1:
            fail(f"--{name} {getattr(flags, name)}: must be 1 or more here")
    if not 0 < flags.width <= 4:
        fail(f"--width {flags.width:g}: must be above 0 and at most 4; the paper uses 1")
    if not CROP <= flags.image_size <= 1024:
        fail(f"--image_size {flags.image_size}: must be from {CROP} to 1024; the paper uses 299")


def fetch(task, server: tf.train.Server) -> None:
    """Fetches CIFAR-10: the chief downloads and extracts it while the others wait.

    `run.sh` does this before it starts the tasks. A worker on another machine fetches its own copy
    after the chief has done so.
    """
    flags, place = task.flags, cifar10.folder()
    if flags.data != "cifar10" or (place.is_dir() and not task.is_chief):
        return
    if task.is_chief:
        cifar10.fetch(flags)
    addresses.wait_for("ps 0", task.hosts["ps"][0], flags.timeout)
    with tf.Graph().as_default():
        gate = gates.Gate("data")
        with tf.Session(server.target, config=task.config) as session:
            if task.is_chief:
                gate.open(session)
            else:
                gate.wait(session, "worker 0 (the chief) to fetch the data", flags.timeout)
    cifar10.fetch(flags)  # downloads nothing on the chief's machine, a copy on any other


def load(flags, part: str, worker: int = 0, workers: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """One worker's shard of the training set, or of the test set.

    Args:
        flags: the parsed command line.
        part: `train` or `test`.
        worker: the shard: examples worker, worker + workers, worker + 2 workers, ...
        workers: how many workers share the set.

    Returns:
        Images [examples, 32, 32, 3], bytes, and labels [examples], int64.
    """
    if flags.data == "synthetic":
        x, labels = synthetic(flags.seed, part)
        return x[worker::workers], labels[worker::workers]
    x, labels = data.load(flags, part, worker, workers)
    return (framed(x) if flags.data == "digits" else x), labels


def framed(x: np.ndarray) -> np.ndarray:
    """Digits [examples, 8, 8] in [0, 1] as images: each pixel becomes 3 x 3, in a black frame, so
    that a crop shows all or nearly all of a digit."""
    x = np.rint(255 * x).astype(np.uint8).repeat(3, axis=1).repeat(3, axis=2)
    edge = (SIZE - x.shape[1]) // 2
    x = np.pad(x, [(0, 0), (edge, edge), (edge, edge)])
    return np.stack([x, x, x], axis=-1)


def synthetic(seed: int, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Ten random pictures of 4 x 4 coloured tiles; an example is halfway between one of them and
    noise."""
    tiles = np.random.default_rng(seed).integers(0, 128, (CLASSES, 4, 4, 3), np.uint8)
    rng = np.random.default_rng([seed, part == "test"])
    labels = rng.integers(0, CLASSES, 5000 if part == "train" else 1000)
    x = tiles.repeat(8, axis=1).repeat(8, axis=2)[labels]
    return x + rng.integers(0, 128, x.shape, np.uint8), labels


def distorted(image: tf.Tensor, seed) -> tf.Tensor:
    """One image for training: random crop, flip, brightness and contrast, then standardised.

    Args:
        image: [32, 32, 3], bytes.
        seed: two integers; the same seed gives the same image.

    Returns:
        [24, 24, 3], floats of mean 0 and variance 1.
    """
    crop, flip, brightness, contrast = tf.unstack(tf.random.experimental.stateless_split(seed, 4))
    x = tf.cast(image, tf.float32)
    x = random.stateless_random_crop(x, [CROP, CROP, 3], crop)
    x = random.stateless_random_flip_left_right(x, flip)
    x = random.stateless_random_brightness(x, 63, brightness)
    x = random.stateless_random_contrast(x, 0.2, 1.8, contrast)
    return tf.image.per_image_standardization(x)


def central(x: tf.Tensor) -> tf.Tensor:
    """Images for evaluation, [examples, 32, 32, 3] in [0, 1]: the centre, standardised."""
    edge = (SIZE - CROP) // 2
    x = 255 * x[:, edge:-edge, edge:-edge]  # in the range of bytes, as in training
    return tf.image.per_image_standardization(x)


def sized(x: tf.Tensor, flags) -> tf.Tensor:
    """Images at the size that `--model` needs: for Xception, enlarged to `--image_size`."""
    if flags.model == "xception":
        x = tf.image.resize(x, [flags.image_size, flags.image_size])
    return x


def batches(flags, worker: int, workers: int):
    """This worker's shard as a `tf.data` pipeline; every epoch has a new order and new distortions.

    Several threads distort images while the network computes, and keep finished batches ready.

    Returns:
        A function without arguments that returns the tensors of a fresh batch, x [batch, size,
        size, 3] and labels [batch].
    """
    all_x, all_labels = load(flags, "train", worker, workers)
    threads = max(2, cluster.cores() // workers)
    seed = flags.seed + 1000 * worker

    def chosen(numbers):  # a function in this process: a constant would travel with the graph
        x, labels = tf.numpy_function(
            lambda k: (all_x[k], all_labels[k]), [numbers], [tf.uint8, tf.int64]
        )
        return tf.ensure_shape(x, [None, SIZE, SIZE, 3]), tf.ensure_shape(labels, [None])

    def one(count, example):
        image, label = example
        return sized(distorted(image, tf.stack([seed, count])), flags), label

    numbers = tf.data.Dataset.range(len(all_labels))
    numbers = numbers.shuffle(len(all_labels), seed, reshuffle_each_iteration=True).repeat()
    # NumPy is called once per batch, not once per image.
    examples = numbers.batch(flags.batch_size).map(chosen).unbatch().enumerate()
    ready = examples.map(one, threads).batch(flags.batch_size, drop_remainder=True)
    return data.pipeline(ready, flags, worker, threads)
