"""The network: two hidden layers with dropout, as plain functions over a list of parameters."""

import itertools

import tensorflow.compat.v1 as tf


def create(flags, features: int, classes: int) -> list[tf.Variable]:
    """The weights [from, to] and biases [to] of each layer, placed by the device scope."""
    params = []
    layers = itertools.pairwise([features, flags.hidden, flags.hidden, classes])
    for i, (inputs, outputs) in enumerate(layers):
        start = tf.glorot_uniform_initializer(seed=flags.seed + i)
        params.append(tf.get_variable(f"weights_{i}", [inputs, outputs], initializer=start))
        zero = tf.zeros_initializer()
        params.append(tf.get_variable(f"biases_{i}", [outputs], initializer=zero))
    return params


def predict(params: list, x: tf.Tensor, dropout: float = 0.0) -> tf.Tensor:
    """The output [batch, classes], before the softmax.

    Args:
        params: variables, or pulled copies of them.
        x: examples, [batch, features].
        dropout: the share of each hidden layer that is set to zero in training; the rest is scaled
            up to compensate. By default nothing is dropped.
    """
    for i in range(0, len(params), 2):
        x = tf.matmul(x, params[i]) + params[i + 1]
        if i + 2 < len(params):
            x = tf.nn.dropout(tf.nn.relu(x), rate=dropout)
    return x


def gradients(params: list, batch, dropout: float) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """The mean training loss of a batch, a scalar, and its gradient for each parameter."""
    x, labels = batch
    output = predict(params, x, dropout)
    loss = tf.losses.sparse_softmax_cross_entropy(labels, output)
    return loss, tf.gradients(loss, params)


def evaluate(params: list, x: tf.Tensor, labels: tf.Tensor) -> dict[str, tf.Tensor]:
    """The metrics of each test example, [batch] each, without dropout.

    `missed` is this project's own metric: 1 for a malignant tumour (class 1) that the network
    assigns to another class.
    """
    output = predict(params, x)
    found = tf.argmax(output, axis=1)
    return {
        "accuracy": tf.equal(found, labels),
        "loss": tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=output),
        "missed": tf.equal(labels, 1) & tf.not_equal(found, 1),
    }
