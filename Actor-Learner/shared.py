"""What the learner and its actors both declare. The same names on the same device are the same
variables and the same queue, whichever process declares them."""

import functools
import math

import tensorflow.compat.v1 as tf

from common import fail

# A batch in the queue: its parts, of any length.
PARTS = {
    "observations": tf.float32,  # [moves, 4], of all its episodes, one after the other
    "actions": tf.int64,  # [moves]
    "returns_to_go": tf.float32,  # [moves]
    "returns": tf.float32,  # [episodes]
    "actor": tf.int64,  # who played
    "pulled_at": tf.int64,  # how many updates the policy held
    "times": tf.float64,  # when it pulled (seconds since 1970); how long it pulled, and played
}


def check(flags) -> None:
    """Ends the process with one sentence if a flag of this example makes no sense."""
    for name in ("episodes", "capacity"):
        if getattr(flags, name) < 1:
            fail(f"--{name} {getattr(flags, name)}: must be 1 or more")
    if not 0 <= flags.discount <= 1:
        fail(f"--discount {flags.discount:g}: must be at least 0 and at most 1")


def network(name: str, outputs: int, flags) -> list[tf.Variable]:
    """One hidden layer over the 4 observed numbers. The output layer starts at zero: the policy
    has no preference yet, the baseline expects nothing."""

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
    """All of it on the learner.

    Returns:
        policy, baseline: lists of variables.
        global_step: how many updates they hold.
        queue: of batches. It is first in, first out, and has room for `--capacity` of them.
    """
    with tf.device("/job:chief/task:0"):
        policy, baseline = network("policy", 2, flags), network("baseline", 1, flags)
        global_step = tf.train.get_or_create_global_step()
        kinds, names = list(PARTS.values()), list(PARTS)
        queue = tf.FIFOQueue(flags.capacity, kinds, names=names, shared_name="batches")
    return policy, baseline, global_step, queue
