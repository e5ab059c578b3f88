"""The network of TensorFlow's CIFAR-10 tutorial, as plain functions over a list of parameters.

Two convolutions, each with pooling and local response normalisation, two dense layers, softmax.
"""

import functools
import math

import tensorflow.compat.v1 as tf
from images import CROP

DECAY = 0.004  # of the weights of the two dense layers


def shapes(classes: int) -> list[tuple[list[int], float, float]]:
    """For each layer: the weights' shape and initial standard deviation, and the initial bias."""
    pooled = math.ceil(math.ceil(CROP / 2) / 2)
    return [
        ([5, 5, 3, 64], 0.05, 0.0),
        ([5, 5, 64, 64], 0.05, 0.1),
        ([pooled * pooled * 64, 384], 0.04, 0.1),
        ([384, 192], 0.04, 0.1),
        ([192, classes], 1 / 192, 0.0),
    ]


def create(flags, classes: int) -> tuple[list[tf.Variable], list[tf.Variable]]:
    """The parameters, weights and biases layer by layer, placed by the device scope. The second
    list, moving statistics, is empty: this network has no batch normalisation."""

    def start(i, shape, deviation):
        return deviation * tf.random.stateless_truncated_normal(shape, [flags.seed, i])

    params = []
    for i, (shape, deviation, bias) in enumerate(shapes(classes)):
        weights = functools.partial(start, i, shape, deviation)
        params.append(tf.Variable(weights, name=f"weights_{i}"))
        params.append(tf.Variable(tf.fill(shape[-1:], bias), name=f"biases_{i}"))
    return params, []


def predict(params: list, x: tf.Tensor, moving: list | None = None):
    """Logits [batch, classes] for images [batch, 24, 24, 3], and an empty list of batch statistics.

    `params` are variables, or pulled copies of them. Only Xception's `predict` uses `moving`."""
    first, second, dense_1, dense_2, last = zip(params[0::2], params[1::2])

    def convolution(x, layer):
        return tf.nn.relu(tf.nn.conv2d(x, layer[0], strides=1, padding="SAME") + layer[1])

    def normalised(x):
        return tf.nn.lrn(x, depth_radius=4, bias=1.0, alpha=0.001 / 9, beta=0.75)

    x = normalised(tf.nn.max_pool2d(convolution(x, first), 3, 2, "SAME"))
    x = tf.nn.max_pool2d(normalised(convolution(x, second)), 3, 2, "SAME")
    x = tf.reshape(x, [-1, math.prod(x.shape[1:].as_list())])
    for weights, biases in (dense_1, dense_2):
        x = tf.nn.relu(tf.matmul(x, weights) + biases)
    return tf.matmul(x, last[0]) + last[1], []


def weight_decay(params: list) -> tf.Tensor:
    """A term of the loss that pulls the weights of the two dense layers towards 0."""
    _, _, (dense_1, _), (dense_2, _), _ = zip(params[0::2], params[1::2])
    return DECAY * (tf.nn.l2_loss(dense_1) + tf.nn.l2_loss(dense_2))
