"""The update that both schemes apply, and the learning rate."""

import tensorflow.compat.v1 as tf


def rate(flags, number: tf.Tensor) -> tf.Tensor:
    """eta_t for update `number`: it falls to a tenth every `--decay_steps` updates."""
    return tf.train.exponential_decay(flags.learning_rate, number, flags.decay_steps, 0.1, True)


def update(flags, number, params: list, grads: list, moving: list, statistics: list):
    """Applies one update. Call it inside `with session.next_update(...)`.

    Args:
        flags: the parsed command line.
        number: the number of the update, from 0.
        params, grads: w~ and its gradients.
        moving, statistics: the moving means and variances of batch normalisation on the ps, and
            those of the batch.

    Returns:
        The op that applies the update, and the parameters' moving averages, variables on the ps.
    """
    optimizer = tf.train.GradientDescentOptimizer(rate(flags, number))
    trained = optimizer.apply_gradients(zip(grads, params))
    average = tf.train.ExponentialMovingAverage(0.9999, num_updates=number)
    with tf.control_dependencies([trained]):  # average <- a average + (1 - a) w~, with the new w~
        averaging = average.apply(params)
    # moving <- d moving + (1 - d) s. Early on d is smaller, as a is, so initial values fade fast.
    d = tf.minimum(0.99, tf.cast((1 + number) / (10 + number), tf.float32))
    seen = [m.assign_sub((m - s) * (1 - d)) for m, s in zip(moving, statistics)]
    return tf.group(averaging, *seen), [average.average(param) for param in params]
