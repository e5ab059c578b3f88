"""The network: a table of embeddings, and a dense layer on the rows of a user and an item.

    rating = w . (u v, u, v) + b        u, v: their rows; u v: elementwise

With ones for u v, and zeros for u and v, it is a matrix factorisation; this is what He et al. 2017
(arXiv 1708.05031, section 3.2) call a generalised one, with biases.
"""

import math

import ratings  # in this folder
import tensorflow.compat.v1 as tf

from common import copies, session

START = 0.1  # the deviation of the table's first values


def table(flags):
    """The table [users + items, width], cut into a block of rows for each ps; the device scope
    places them. Its first values do not depend on how many there are."""
    data = ratings.of(flags)
    shape = [data.users + data.items, flags.width]

    def start(block, dtype=tf.float32, partition_info=None):
        first = partition_info.var_offset[0] if partition_info else 0
        whole = tf.random.stateless_normal(shape, seed=[flags.seed, 0], dtype=dtype)
        return START * whole[first : first + block[0]]

    cut = tf.fixed_size_partitioner(flags.ps) if flags.ps > 1 else None
    return tf.get_variable("embeddings", shape, initializer=start, partitioner=cut)


def dense(flags) -> list[tf.Variable]:
    """The dense layer: weights [3 width], bias []."""
    ones, small = tf.ones([flags.width]), tf.fill([2 * flags.width], 1 / math.sqrt(flags.width))
    weights = tf.Variable(lambda: tf.concat([ones, small], 0), name="weights")
    mean = float(ratings.of(flags).part(test=False).values.mean(dtype=float))
    return [weights, tf.Variable(mean, name="bias")]


def predict(w: list, rows: tf.Tensor) -> tf.Tensor:
    """The ratings [batch].

    Args:
        w: the dense layer's weights and bias.
        rows: the rows of user and item, [batch, 2, width].
    """
    weights, bias = w
    u, v = tf.unstack(rows, axis=1)
    return tf.linalg.matvec(tf.concat([u * v, u, v], axis=1), weights) + bias


def gradients(w: list, where: tf.Tensor, values: tf.Tensor) -> tuple[tf.Tensor, list]:
    """The mean loss, half the squared error, and its gradients at weights, bias and rows.

    Args:
        w: weights, bias, and rows of the table, [rows, width], in one or more blocks.
        where: which of these rows are a rating's user and item, [batch, 2].
        values: the ratings, [batch].
    """
    rows = tf.concat(w[2:], axis=0) if len(w) > 3 else w[2]
    errors = predict(w[:2], tf.gather(rows, where)) - values
    loss = tf.reduce_mean(errors**2) / 2
    return loss, tf.gradients(loss, w)


def evaluate(w: list, ids: tf.Tensor, values: tf.Tensor) -> dict:
    """What the test measures: the RMSE, the loss, and the AUC. `w`: the values of weights and bias,
    and the table, of which only the rows that the examples name travel."""
    *w, table = w
    rows = copies.rows(table, ids)
    pull = copies.pull([], tf.train.get_global_step(), rows=[rows])
    predicted = predict(w, tf.gather(pull.w[0], rows.where))
    squared = (predicted - values) ** 2
    return {
        "RMSE": session.Metric(squared, math.sqrt, lower=True),
        "loss": squared / 2,
        "AUC": auc(predicted, values),
    }


def auc(predicted: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Numbers [batch] whose mean is the AUC of the batch: the probability that of two ratings, one
    above the mean and one not, the first is predicted higher."""
    liked = values > tf.reduce_mean(values)
    higher = tf.cast(predicted[:, None] > predicted[None, :], tf.float32)
    equal = tf.cast(tf.equal(predicted[:, None], predicted[None, :]), tf.float32)
    pairs = tf.cast(liked[:, None] & ~liked[None, :], tf.float32)
    won = tf.reduce_sum(pairs * (higher + equal / 2), axis=1)
    return tf.math.divide_no_nan(won, tf.reduce_mean(tf.reduce_sum(pairs, axis=1)))
