"""Signs as bits, eight to a byte; the first is the byte's highest bit, as in `np.packbits`."""

import tensorflow.compat.v1 as tf

PLACES = [128, 64, 32, 16, 8, 4, 2, 1]  # the value of each bit of a byte


def size(shape: tf.TensorShape) -> int:
    """The number of bytes that hold one bit for each element of this shape."""
    return -(-shape.num_elements() // 8)  # rounded up


def pack(values: tf.Tensor) -> tf.Tensor:
    """The signs of `values`, of any shape, as bytes: uint8 [bytes]. A bit is 1 for 0 and above."""
    bits = tf.cast(tf.reshape(values, [-1]) >= 0, tf.uint8)
    bits = tf.pad(bits, [[0, -values.shape.num_elements() % 8]])  # zeros fill the last byte
    return tf.reduce_sum(tf.reshape(bits, [-1, 8]) * tf.constant(PLACES, tf.uint8), axis=1)


def unpack(packed: tf.Tensor, shape: tf.TensorShape) -> tf.Tensor:
    """The opposite: uint8 [..., bytes] to float32 [..., *shape], with +1 for a 1 and -1 for a 0."""
    bits = tf.bitwise.bitwise_and(packed[..., tf.newaxis], tf.constant(PLACES, tf.uint8)) > 0
    before = packed.shape[:-1]
    bits = tf.reshape(bits, [*before, -1])[..., : shape.num_elements()]
    return 2.0 * tf.reshape(tf.cast(bits, tf.float32), [*before, *shape]) - 1.0
