"""Evaluates on the test set, with and without the moving average of the parameters."""

import images
import tensorflow.compat.v1 as tf

from common import copies


def measures(flags, network, averages: list, global_step):
    """The `evaluate` of `session.training`.

    Args:
        flags: the parsed command line.
        network: the module, `cnn` or `xception`.
        averages: variables on the ps: moving averages of the parameters.
        global_step: the number of updates so far.
    """

    def evaluate(values, x, labels):
        # Those of the parameters, then the moving statistics of batch normalisation.
        params, statistics = values[: len(averages)], values[len(averages) :]
        averaged = copies.pull(averages, global_step).w
        x = images.sized(images.central(x), flags)
        logits, _ = network.predict(averaged, x, statistics)
        newest, _ = network.predict(params, x, statistics)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        return {
            "accuracy": tf.equal(tf.argmax(logits, 1), labels),
            "loss": losses,
            "accuracy_without_average": tf.equal(tf.argmax(newest, 1), labels),
        }

    return evaluate
