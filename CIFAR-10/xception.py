"""Xception (Chollet 2017, arXiv 1610.02357), as plain functions over a list of parameters.

A layer here is a few lines that take the next parameters from the list. So the same code computes
with pulled values, with variables, and with their averages. (A Keras layer has its own variables,
but `stateless_call` computes with other values: see Keras-Model. It does not return the statistics
of the batch, which this example pushes.)
"""

import functools
import math

import tensorflow.compat.v1 as tf

DECAY = 1e-5  # of all filters and weights, as in the paper
EPSILON = 1e-3  # of batch normalisation
MIDDLE = 8  # repetitions of the middle flow


def scaled(channels: int, width: float) -> int:
    """`channels` times `--width`, rounded to a multiple of 8, at least 8."""
    return max(8, 8 * round(channels * width / 8))


def shapes(classes: int, width: float = 1.0) -> tuple[list[tuple], list[int]]:
    """Shapes and initial values (None: random) of the parameters, in the order of `predict`; and
    the channels of each batch normalisation, which has two moving statistics."""
    params, normalised = [], []

    def normalisation(channels):
        params.extend([([channels], 1.0), ([channels], 0.0)])  # gamma, beta
        normalised.append(channels)

    def convolution(size, inputs, outputs):
        params.append(([size, size, inputs, outputs], None))
        normalisation(outputs)

    def separable(inputs, outputs):
        params.append(([3, 3, inputs, 1], None))  # within each channel
        params.append(([1, 1, inputs, outputs], None))  # across the channels
        normalisation(outputs)

    n = {c: scaled(c, width) for c in (32, 64, 128, 256, 728, 1024, 1536, 2048)}
    convolution(3, 3, n[32])
    convolution(3, n[32], n[64])
    for inputs, middle, outputs in ((64, 128, 128), (128, 256, 256), (256, 728, 728)):
        convolution(1, n[inputs], n[outputs])
        separable(n[inputs], n[middle])
        separable(n[middle], n[outputs])
    for _ in range(3 * MIDDLE):
        separable(n[728], n[728])
    convolution(1, n[728], n[1024])
    for inputs, outputs in ((728, 728), (728, 1024), (1024, 1536), (1536, 2048)):
        separable(n[inputs], n[outputs])
    params += [([n[2048], classes], None), ([classes], 0.0)]
    return params, normalised


def create(flags, classes: int) -> tuple[list[tf.Variable], list[tf.Variable]]:
    """The parameters, and the moving means and variances of the batch normalisations, which are not
    trained. The device scope places them."""
    params, normalised = shapes(classes, flags.width)

    def start(i, shape, value):
        if value is not None:
            return tf.fill(shape, value)
        area = math.prod(shape[:-2])  # Glorot uniform weights
        limit = math.sqrt(6 / (area * (shape[-2] + shape[-1])))
        return tf.random.stateless_uniform(shape, [flags.seed, i], -limit, limit)

    made = [
        tf.Variable(functools.partial(start, i, *param), name=f"parameter_{i}")
        for i, param in enumerate(params)
    ]
    moving = [
        tf.Variable(tf.fill([channels], value), trainable=False, name=f"{name}_{i}")
        for i, channels in enumerate(normalised)
        for name, value in (("moving_mean", 0.0), ("moving_variance", 1.0))
    ]
    return made, moving


def predict(params: list, x: tf.Tensor, moving: list | None = None):
    """The network's output and the statistics of its batch normalisations.

    Args:
        params: variables, or pulled copies of them.
        x: images, [batch, size, size, 3].
        moving: the means and variances for evaluation. Without them, as in training, each batch is
            normalised with its own.

    Returns:
        [batch, classes], before the softmax; and the batch's mean and variance at each
        normalisation, a list in the order of the moving ones (empty in evaluation).
    """
    param, known, statistics = iter(params), iter(moving or []), []

    def normalised(x):
        gamma, beta = next(param), next(param)
        if moving:
            mean, variance = next(known), next(known)
        else:
            mean, variance = tf.nn.moments(x, axes=[0, 1, 2])
            statistics.extend([mean, variance])
        return tf.nn.batch_normalization(x, mean, variance, beta, gamma, EPSILON)

    def convolution(x, stride, padding="SAME"):
        return normalised(tf.nn.conv2d(x, next(param), stride, padding))

    def separable(x):
        return normalised(tf.nn.separable_conv2d(x, next(param), next(param), [1] * 4, "SAME"))

    def pooled(x):
        return tf.nn.max_pool2d(x, 3, 2, "SAME")

    # Entry flow
    x = tf.nn.relu(convolution(x, 2, "VALID"))
    x = tf.nn.relu(convolution(x, 1, "VALID"))
    for block in range(3):
        residual = convolution(x, 2)
        x = separable(tf.nn.relu(x) if block else x)
        x = pooled(separable(tf.nn.relu(x))) + residual
    # Middle flow
    for _ in range(MIDDLE):
        residual = x
        for _ in range(3):
            x = separable(tf.nn.relu(x))
        x += residual
    # Exit flow
    residual = convolution(x, 2)
    x = separable(tf.nn.relu(x))
    x = pooled(separable(tf.nn.relu(x))) + residual
    x = tf.nn.relu(separable(x))
    x = tf.nn.relu(separable(x))
    x = tf.reduce_mean(x, axis=[1, 2])
    return tf.matmul(x, next(param)) + next(param), statistics


def weight_decay(params: list) -> tf.Tensor:
    """A term of the loss that pulls filters and weights towards 0."""
    return DECAY * tf.add_n([tf.nn.l2_loss(p) for p in params if p.shape.rank > 1])
