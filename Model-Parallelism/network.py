"""The network: four layers, as plain functions over a list of parameters."""

import math

import numpy as np
import tensorflow.compat.v1 as tf

from common import datasets, fail

LAYERS = 4
PAIRS = LAYERS // 2


def sizes(flags) -> list[int]:
    """The width of the input of each layer, and of the output."""
    datasets.check_floats(flags)
    example, classes, _ = datasets.describe(flags)
    return [math.prod(example), *[flags.hidden] * (LAYERS - 1), classes]


def start(flags, layer: int) -> tf.Tensor:
    """The initial weights [from, to] of a layer, the same for every split: He normal
    initialisation (arXiv 1502.01852). Biases start at zero."""
    inputs, outputs = sizes(flags)[layer : layer + 2]
    noise = tf.random.stateless_normal([inputs, outputs], seed=[flags.seed, layer])
    return math.sqrt(2 / inputs) * noise


def create(flags, layer: int) -> list[tf.Variable]:
    """The weights and biases of a layer, placed by the device scope."""
    outputs = sizes(flags)[layer + 1]
    return [
        tf.Variable(lambda: start(flags, layer), name=f"weights_{layer}"),
        tf.Variable(lambda: tf.zeros([outputs]), name=f"biases_{layer}"),
    ]


def forward(params: list, h: tf.Tensor, last: bool) -> tf.Tensor:
    """Consecutive layers, each with a ReLU at its end.

    Args:
        params: weights and biases of these layers.
        h: the input of the first layer, [batch, from].
        last: whether the network ends with these layers: the last one then has no ReLU.
    """
    for i in range(0, len(params), 2):
        h = tf.matmul(h, params[i]) + params[i + 1]
        if not last or i + 2 < len(params):
            h = tf.nn.relu(h)
    return h


def loss(output: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """The softmax cross-entropy, summed over the examples: a scalar."""
    return tf.reduce_sum(_losses(output, labels))


def _losses(output, labels):
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=output)


def evaluate(params: list, x: tf.Tensor, labels: tf.Tensor) -> dict[str, tf.Tensor]:
    """The metrics of each test example, [batch] each, from the unsplit network."""
    return _measures(forward(params, flat(x), last=True), labels)


def _measures(output, labels):
    return {"accuracy": tf.equal(tf.argmax(output, 1), labels), "loss": _losses(output, labels)}


def flat(x: tf.Tensor) -> tf.Tensor:
    """Images as rows, [batch, pixels], of floats."""
    return tf.reshape(tf.cast(x, tf.float32), [-1, math.prod(x.shape[1:].as_list())])


def check(flags) -> None:
    """Exits with a one-line error if flags are invalid or do not fit together."""
    size = flags.batch_size or datasets.describe(flags).size
    if flags.split == "units" and flags.micro_batches != 1:
        fail("--micro_batches: leave it out, since --split units keeps all workers busy at once")
    if not 1 <= flags.micro_batches <= size:
        fail(f"--micro_batches {flags.micro_batches}: must be from 1 to the batch's size, {size}")
    most, what = {"layers": (LAYERS, "layer"), "units": (flags.hidden, "unit")}[flags.split]
    if flags.workers > most:
        fail(f"--workers {flags.workers}: each needs a {what}, and there are only {most}")
    if set(flags.delay or {}) - {0}:
        fail("--delay: all examples come from the chief, so give 0:SECONDS, which delays each step")


# --split layers


def stages(flags) -> list[list[int]]:
    """The layers of each worker: consecutive, and as evenly divided as possible."""
    return [part.tolist() for part in np.array_split(range(LAYERS), flags.workers)]


def micro_batches(flags, x: tf.Tensor, labels: tf.Tensor) -> tuple[list, list]:
    """A batch in `--micro_batches` parts of nearly equal size; images become rows."""
    sizes = [len(part) for part in np.array_split(range(labels.shape[0]), flags.micro_batches)]
    return tf.split(flat(x), sizes), tf.split(labels, sizes)


# --split units


def units(flags, k: int) -> slice:
    """Worker k's units between the two layers of a pair: a contiguous slice."""
    cuts = [flags.hidden * k // flags.workers for k in range(flags.workers + 1)]
    return slice(cuts[k], cuts[k + 1])


def create_units(flags, k: int) -> list[tf.Variable]:
    """Worker k's part of the parameters: V_k, c_k and W_k of each pair; worker 0 also has b."""
    mine, parts = units(flags, k), []
    for first in range(0, LAYERS, 2):
        outputs = sizes(flags)[first + 2]
        parts += [
            tf.Variable(lambda f=first: start(flags, f)[:, mine], name=f"weights_{first}_{k}"),
            tf.Variable(lambda: tf.zeros([mine.stop - mine.start]), name=f"biases_{first}_{k}"),
            tf.Variable(lambda f=first: start(flags, f + 1)[mine], name=f"weights_{first + 1}_{k}"),
        ]
        if k == 0:
            parts.append(tf.Variable(lambda o=outputs: tf.zeros([o]), name=f"biases_{first + 1}"))
    return parts


def forward_units(params: list, pair: int, h: tf.Tensor) -> tf.Tensor:
    """A worker's part z_k of the sum that a pair of layers outputs.

    Args:
        params: the worker's parts, in the order of `create_units`.
        pair: 0 or 1.
        h: the complete input of the pair.
    """
    size = len(params) // PAIRS
    v, c, w, *b = params[size * pair : size * (pair + 1)]
    z = tf.matmul(tf.nn.relu(tf.matmul(h, v) + c), w)
    return z + b[0] if b else z


def evaluate_units(params: list, x: tf.Tensor, labels: tf.Tensor) -> dict[str, tf.Tensor]:
    """Like `evaluate`, from the parts of all workers, in order."""
    workers = [params[: 4 * PAIRS]]
    workers += [params[i : i + 3 * PAIRS] for i in range(4 * PAIRS, len(params), 3 * PAIRS)]
    h = flat(x)
    for pair in range(PAIRS):
        h = tf.add_n([forward_units(mine, pair, h) for mine in workers])
        if pair < PAIRS - 1:
            h = tf.nn.relu(h)
    return _measures(h, labels)
