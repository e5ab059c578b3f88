"""The networks: plain functions over a list of parameters.

The schemes need functions that take variables, pulled copies, or the changing values inside a loop
as parameters.
"""

import functools
import itertools
import math

import tensorflow.compat.v1 as tf

from common import datasets, gpt
from common.graph import accelerator
from common.graph.scope import scope
from common.records import Metric


def _dense_shapes(sizes: list[int]) -> list[list[int]]:
    """Weights [from, to], then biases [to], layer by layer."""
    return [shape for a, b in itertools.pairwise(sizes) for shape in ([a, b], [b])]


def shapes(flags) -> list[list[int]]:
    """The parameters' shapes, in model order.

    `linear`: weights [features, classes], biases [classes]. `mlp`: the same over one hidden layer
    of `--hidden` units. `cnn`: two 3x3 convolutions (16 and 32 filters, weights
    [3, 3, in, out]; 1x3 for signals), each followed by 2x2 max pooling, then a dense layer.
    `gpt`: see `gpt.py`.
    """
    if flags.model == "gpt":
        return list(gpt.shapes(flags).values())
    datasets.check_floats(flags)
    example, classes, _ = datasets.describe(flags)
    features = math.prod(example)
    if flags.model == "linear":
        return _dense_shapes([features, classes])
    if flags.model == "mlp":
        return _dense_shapes([features, flags.hidden, classes])
    height, width, channels = datasets.image(example)
    pooled = math.ceil(math.ceil(height / 2) / 2) * math.ceil(math.ceil(width / 2) / 2)
    rows = 3 if height > 1 else 1
    filters = [[rows, 3, channels, 16], [16], [rows, 3, 16, 32], [32]]
    return filters + _dense_shapes([pooled * 32, classes])


def create(flags) -> list[tf.Variable]:
    """Creates the global parameters as variables, where the current device scope puts them.

    `linear` starts at zero. `mlp` and `cnn` start with zero biases and He normal weights (arXiv
    1502.01852); for `gpt`, see `gpt.start`. They depend only on `--seed`, not on the scheme.
    """
    if flags.model == "gpt":
        return [tf.Variable(functools.partial(gpt.start, flags, i, name, shape), name=name)
                for i, (name, shape) in enumerate(gpt.shapes(flags).items())]  # fmt: skip

    def start(i: int, shape: list[int]) -> tf.Tensor:
        if flags.model == "linear" or len(shape) == 1:
            return tf.zeros(shape)
        scale = math.sqrt(2 / math.prod(shape[:-1]))
        return scale * tf.random.stateless_normal(shape, seed=[flags.seed, i])

    kinds = ("weights", "biases")
    return [tf.Variable(functools.partial(start, i, shape), name=f"{kinds[i % 2]}_{i // 2}")
            for i, shape in enumerate(shapes(flags))]  # fmt: skip


def logits(model: str, params: list, x: tf.Tensor) -> tf.Tensor:
    """The network's output.

    Args:
        model: `linear`, `mlp`, `cnn` or `gpt`.
        params: tensors or variables of the shapes from `shapes`.
        x: examples, [batch, ...], floats or whole numbers; for `gpt`, characters [batch, context].

    Returns:
        [batch, classes], before the softmax; for `gpt`, [batch, context, characters].
    """
    if model == "gpt":
        return gpt.logits(params, x)
    x = tf.cast(x, params[0].dtype)
    if model == "cnn":
        if x.shape.rank != 4:
            x = tf.reshape(x, [-1, *datasets.image(tuple(x.shape[1:].as_list()))])
        for filters, biases in (params[0:2], params[2:4]):
            x = tf.nn.relu(tf.nn.conv2d(x, filters, strides=1, padding="SAME") + biases)
            x = tf.nn.max_pool2d(x, 2, 2, "SAME")
        params = params[4:]
    x = tf.reshape(x, [-1, math.prod(x.shape[1:].as_list())])
    for i in range(0, len(params), 2):
        x = tf.matmul(x, params[i]) + params[i + 1]
        if i + 2 < len(params):
            x = tf.nn.relu(x)
    return x


@scope("gradient")
def gradients(flags, params: list, batch) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """The mean loss (a scalar) of a batch (x [batch, ...], labels [batch] or, for `gpt`, [batch,
    context]) at `params`, and its gradients with respect to `params`.

    With `--compute_ms M` they take at least M milliseconds from the moment when `params` and the
    batch are there; what is left of that time is slept.
    """
    if flags.compute_ms:
        began, batch = accelerator.start(params, batch)
    loss = tf.reduce_mean(evaluate(flags.model, params, *batch)["loss"])
    found = loss, tf.gradients(loss, params)
    return accelerator.at_least(flags.compute_ms, began, found) if flags.compute_ms else found


def evaluate(
    model: str, params: list, x: tf.Tensor, labels: tf.Tensor
) -> dict[str, tf.Tensor | Metric]:
    """Measures each example: `accuracy` (1 or 0) and `loss`, the softmax cross-entropy; [batch]
    each. For `gpt`, the loss is its mean over the characters, in bits: also
    `bits_per_character`."""
    output = logits(model, params, x)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=output)
    if model == "gpt":
        bits = tf.reduce_mean(losses, axis=1) / math.log(2)
        return {"bits_per_character": Metric(bits, lower=True), "loss": bits}
    return {"accuracy": tf.equal(tf.argmax(output, 1), labels), "loss": losses}
