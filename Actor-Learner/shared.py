"""What both the learner and the actors declare. The same name on the same device is the same
variable or queue, whichever process declares it."""

import functools
import math

import tensorflow.compat.v1 as tf

from common import fail

# The parts of a batch in the queue; their lengths vary.
PARTS = {
    "observations": tf.float32,  # [moves, 4], all episodes of the batch, concatenated
    "actions": tf.int64,  # [moves]
    "returns_to_go": tf.float32,  # [moves]
    "returns": tf.float32,  # [episodes]
    "actor": tf.int64,  # who played
    "pulled_at": tf.int64,  # how many updates the policy contained
    "times": tf.float64,  # when the pull began (seconds since 1970), how long pull and play took
}


def check(flags) -> None:
    """Exits with a one-line error if a flag of this example makes no sense."""
    for name in ("episodes", "capacity"):
        if getattr(flags, name) < 1:
            fail(f"--{name} {getattr(flags, name)}: must be 1 or more")
    if not 0 <= flags.discount <= 1:
        fail(f"--discount {flags.discount:g}: must be at least 0 and at most 1")


def network(name: str, outputs: int, flags) -> list[tf.Variable]:
    """One hidden layer over the 4 observed numbers. The output layer starts at zero, so at first
    the policy has no preference and the baseline predicts 0."""

    def start(which: str, shape: list[int]) -> tf.Tensor:
        if which != "weights_0":
            return tf.zeros(shape)
        return math.sqrt(2 / 4) * tf.random.stateless_normal(shape, seed=[flags.seed, outputs])

    shapes = {
        "weights_0": [4, flags.hidden],
        "biases_0": [flags.hidden],
        "weights_1": [flags.hidden, outputs],
        "biases_1": [outputs],
    }
    return [
        tf.Variable(functools.partial(start, which, shape), name=f"{name}_{which}")
        for which, shape in shapes.items()
    ]


def declare(flags):
    """Declares everything on the learner.

    Returns:
        policy, baseline: lists of variables.
        global_step: how many updates they contain.
        queue: a FIFO queue of at most `--capacity` batches.
    """
    with tf.device("/job:chief/task:0"):
        policy, baseline = network("policy", 2, flags), network("baseline", 1, flags)
        global_step = tf.train.get_or_create_global_step()
        kinds, names = list(PARTS.values()), list(PARTS)
        queue = tf.FIFOQueue(flags.capacity, kinds, names=names, shared_name="batches")
    return policy, baseline, global_step, queue
