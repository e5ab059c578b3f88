"""The network: two hidden layers, as plain functions over a list of parameters."""

import itertools

import table
import tensorflow.compat.v1 as tf

from common import session


def create(flags, features: int) -> list[tf.Variable]:
    """The weights [from, to] and biases [to] of each layer, placed by the device scope."""
    params = []
    layers = itertools.pairwise([features, flags.hidden, flags.hidden, 1])
    for i, (inputs, outputs) in enumerate(layers):
        start = tf.glorot_uniform_initializer(seed=flags.seed + i)
        params.append(tf.get_variable(f"weights_{i}", [inputs, outputs], initializer=start))
        zero = tf.zeros_initializer()
        params.append(tf.get_variable(f"biases_{i}", [outputs], initializer=zero))
    return params


def output(params: list, x: tf.Tensor) -> tf.Tensor:
    """How many standard deviations the target is above its mean, [batch].

    Args:
        params: variables, or pulled copies of them.
        x: from `table.features`, [batch, features].
    """
    for i in range(0, len(params), 2):
        x = tf.matmul(x, params[i]) + params[i + 1]
        if i + 2 < len(params):
            x = tf.nn.relu(x)
    return x[:, 0]


def predict(params: list, columns: dict[str, tf.Tensor], learnt: dict) -> tf.Tensor:
    """The target in its own unit, [batch], from columns of the table, [batch] each."""
    ((mean, deviation),) = learnt["target"].values()
    return mean + deviation * output(params, table.features(columns, learnt))


def gradients(params: list, batch, learnt: dict) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """The mean squared error of a batch, in squared standard deviations, a scalar; and its gradient
    for each parameter."""
    x, targets = batch
    ((mean, deviation),) = learnt["target"].values()
    loss = tf.reduce_mean((output(params, x) - (targets - mean) / deviation) ** 2)
    return loss, tf.gradients(loss, params)


def measures(learnt: dict):
    """The `evaluate` of `session.training`: the metric is the mean absolute error, MAE, in the
    target's unit."""

    def evaluate(params: list, lines: tf.Tensor, targets: tf.Tensor) -> dict:
        error = predict(params, table.columns_of(lines, learnt), learnt) - targets
        ((_, deviation),) = learnt["target"].values()
        return {
            "MAE": session.Metric(tf.abs(error), lower=True),
            "loss": (error / deviation) ** 2,
        }

    return evaluate
