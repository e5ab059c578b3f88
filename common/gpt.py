"""A small GPT: a decoder like GPT-2 (Radford et al. 2019), as plain functions over a list of
parameters.

    x <- E[characters] + P                     E: token embeddings, P: position embeddings
    for each block:  x <- x + attention(norm(x))
                     x <- x + feed_forward(norm(x))
    logits = norm(x) E'                        E' is E transposed: input and output are tied

It sees `context` characters and predicts, after each of them, the next one.
"""

import math

import tensorflow.compat.v1 as tf

CHARACTERS = 256  # a character is a byte
BLOCK = 12  # parameters of a block


def shapes(flags) -> dict[str, list[int]]:
    """Name -> shape of each parameter, in model order. `attention` reads the heads from them."""
    width, heads = flags.width, flags.heads
    found = {"tokens": [CHARACTERS, width], "positions": [flags.context, width]}
    for i in range(flags.layers):
        found |= {
            f"block_{i}/norm_1/gain": [width],
            f"block_{i}/norm_1/bias": [width],
            f"block_{i}/queries_keys_values/weights": [width, 3, heads, width // heads],
            f"block_{i}/queries_keys_values/biases": [3, heads, width // heads],
            f"block_{i}/mix/weights": [width, width],
            f"block_{i}/mix/biases": [width],
            f"block_{i}/norm_2/gain": [width],
            f"block_{i}/norm_2/bias": [width],
            f"block_{i}/up/weights": [width, 4 * width],
            f"block_{i}/up/biases": [4 * width],
            f"block_{i}/down/weights": [4 * width, width],
            f"block_{i}/down/biases": [width],
        }
    return found | {"norm/gain": [width], "norm/bias": [width]}


def start(flags, i: int, name: str, shape: list[int]) -> tf.Tensor:
    """The first value of parameter i. Weights are normal with a variance of 1 / inputs, so that
    numbers keep their size from layer to layer; less where a block adds to x, as in GPT-2."""
    if name.endswith(("biases", "bias")):
        return tf.zeros(shape)
    if name.endswith("gain"):
        return tf.ones(shape)
    inputs = shape[0] if name.endswith("weights") else flags.width
    added = 2 * flags.layers if "mix" in name or "down" in name else 1
    scale = 1 / math.sqrt(inputs * added)
    return scale * tf.random.stateless_normal(shape, seed=[flags.seed, i])


def norm(x, gain, bias):
    """Layer normalisation: x with mean 0 and variance 1 over the width; then gain and bias."""
    mean, variance = tf.nn.moments(x, axes=[-1], keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + 1e-5) * gain + bias


def linear(x, weights, biases):
    """x W + b over the last axis of x; the result has the shape of b there."""
    inputs = weights.shape[0]
    flat = tf.matmul(tf.reshape(x, [-1, inputs]), tf.reshape(weights, [inputs, -1]))
    return tf.reshape(flat, tf.concat([tf.shape(x)[:-1], biases.shape], 0)) + biases


def attention(x, qkv_weights, qkv_biases, mix_weights, mix_biases):
    """softmax(Q K' / sqrt(d)) V for each head of width d, where no character sees a later one; then
    a linear layer mixes the heads. Vaswani et al. 2017, arXiv 1706.03762, section 3.2."""
    qkv = linear(x, qkv_weights, qkv_biases)  # [batch, context, 3, heads, d]
    q, k, v = tf.unstack(tf.transpose(qkv, [2, 0, 3, 1, 4]))  # each [batch, heads, context, d]
    scores = tf.matmul(q, k, transpose_b=True) / math.sqrt(qkv_weights.shape[-1])  # [.., from, to]
    seen = tf.linalg.band_part(tf.ones_like(scores[0, 0]), -1, 0)  # 1 on and below the diagonal
    shares = tf.nn.softmax(scores - 1e9 * (1 - seen))
    heads = tf.transpose(tf.matmul(shares, v), [0, 2, 1, 3])  # [batch, context, heads, d]
    return linear(tf.reshape(heads, tf.shape(x)), mix_weights, mix_biases)


def feed_forward(x, up_weights, up_biases, down_weights, down_biases):
    """Linear, GELU, linear; four times as wide in between. GELU: arXiv 1606.08415, section 2."""
    x = linear(x, up_weights, up_biases)
    x *= 0.5 * (1 + tf.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return linear(x, down_weights, down_biases)


def logits(params: list, characters: tf.Tensor) -> tf.Tensor:
    """The network's output.

    Args:
        params: tensors or variables of the shapes from `shapes`.
        characters: [batch, length], whole numbers; length is at most `--context`.

    Returns:
        [batch, length, CHARACTERS], before the softmax: what may follow each character.
    """
    tokens, positions, *blocks, gain, bias = params
    x = tf.gather(tokens, characters) + positions[: tf.shape(characters)[1]]
    for i in range(0, len(blocks), BLOCK):
        p = blocks[i : i + BLOCK]
        x += attention(norm(x, *p[0:2]), *p[2:6])
        x += feed_forward(norm(x, *p[6:8]), *p[8:12])
    return linear(norm(x, gain, bias), tf.transpose(tokens), tf.zeros([CHARACTERS], x.dtype))
