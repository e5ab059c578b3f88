"""The Keras network, and how to compute with other values than those of its own variables.

A Keras network has two kinds of numbers that travel: its parameters w, `net.trainable_variables`,
and its state s, the moving statistics of batch normalisation. Dropout has a third kind, the state
of a random generator for each layer; each worker makes its own (`_others`).
"""

import keras
import tensorflow.compat.v1 as tf

from common import datasets


def create(flags) -> keras.Model:
    """The network, built, since `stateless_call` needs that; the device scope places its variables.
    `--seed` decides their first values."""
    keras.utils.set_random_seed(flags.seed)
    example, classes, _ = datasets.describe(flags)
    net = keras.Sequential(
        [
            keras.layers.Flatten(),
            keras.layers.Dense(flags.hidden, use_bias=False),  # normalisation has its own bias
            keras.layers.BatchNormalization(momentum=flags.bn_momentum),
            keras.layers.Activation("relu"),
            keras.layers.Dropout(flags.dropout),
            keras.layers.Dense(classes),
        ]
    )
    net.build([None, *example])
    return net


def variables(net: keras.Model) -> tuple[list[tf.Variable], list[tf.Variable]]:
    """The variables of w and of s, in the order in which the functions below take their values."""
    return [v.value for v in net.trainable_variables], [v.value for v in net.non_trainable_weights]


def split(net: keras.Model, values: list) -> tuple[list, list]:
    """Splits one value for each variable into those of w and those of s."""
    n = len(net.trainable_variables)
    return values[:n], values[n:]


def gradients(net: keras.Model, w: list, s: list, batch) -> tuple[tf.Tensor, list, list]:
    """One training step: dropout drops other units each time, and batch normalisation normalises
    with the statistics of the batch.

    Args:
        net: the network; its own variables are not read.
        w, s: values for them: pulled ones, or those of a loop.
        batch: x [batch, ...] and labels [batch].

    Returns:
        The loss, a scalar: the mean cross-entropy of the batch, and what regularizers add. Its
        gradients at `w`, all dense. The new state.
    """
    x, labels = batch
    output, others, losses = net.stateless_call(
        w, _others(net, s), x, training=True, return_losses=True
    )
    loss = tf.losses.sparse_softmax_cross_entropy(labels, output)
    loss = tf.add_n([loss, *losses])
    grads = [_dense(g) for g in tf.gradients(loss, w)]
    return loss, grads, [others[i] for i in _places(net)]


def evaluate(net: keras.Model, values: list, x: tf.Tensor, labels: tf.Tensor) -> dict:
    """What the test measures, [batch] each: with the moving statistics, and nothing dropped.
    `values`: of w and s."""
    w, s = split(net, values)
    output, _ = net.stateless_call(w, _others(net, s), x, training=False)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=output)
    return {"accuracy": tf.equal(tf.argmax(output, axis=1), labels), "loss": losses}


def _places(net: keras.Model) -> list[int]:
    """Where s stands among `net.non_trainable_variables`, which are what Keras calls state."""
    where = {id(v): i for i, v in enumerate(net.non_trainable_variables)}
    return [where[id(v)] for v in net.non_trainable_weights]


def _others(net: keras.Model, s: list) -> list:
    """Values for `net.non_trainable_variables`: s, and fresh random numbers for all others.

    The others are the states of random generators, from which Keras computes what a layer drops.
    With the variables in their place, every step would drop the same units.
    """

    def fresh(shape, dtype):
        # seed=0: each operation of each process begins elsewhere. tf.random.uniform would take the
        # graph's seed, which set_random_seed has set: then all workers would drop the same units.
        shape = tf.constant(shape.as_list(), tf.int32)
        low, high = tf.constant(0, tf.int64), tf.constant(2**31 - 1, tf.int64)
        drawn = tf.raw_ops.RandomUniformInt(shape=shape, minval=low, maxval=high, seed=0, seed2=0)
        return tf.cast(drawn, dtype)

    known = dict(zip(_places(net), s, strict=True))
    variables = [v.value for v in net.non_trainable_variables]
    return [known[i] if i in known else fresh(v.shape, v.dtype) for i, v in enumerate(variables)]


def _dense(g):
    """A gradient as one tensor: that of an embedding names the rows that were looked up."""
    if not isinstance(g, tf.IndexedSlices):
        return g
    rows = tf.cast(g.dense_shape[0], tf.int32)
    return tf.math.unsorted_segment_sum(g.values, g.indices, rows)
