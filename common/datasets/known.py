"""What is known about the data sets that this package has, without reading them."""

from typing import NamedTuple


class Description(NamedTuple):
    """What is known about a data set before reading it."""

    example: tuple[int, ...]  # the shape of one example
    classes: int
    size: int  # examples in the training set


KNOWN = {
    "digits": Description((8, 8), 10, 1437),
    "mnist": Description((28, 28), 10, 60_000),
    "fashion_mnist": Description((28, 28), 10, 60_000),
    "cifar10": Description((32, 32, 3), 10, 50_000),
    "mnist1d": Description((1, 40), 10, 20_000),  # an image of height 1
    "synthetic": Description((784,), 10, 60_000),
}
TEXTS = ("text", "shakespeare")  # for --model gpt; how long they are, only their reader knows
DOWNLOADED = ("mnist", "fashion_mnist", "cifar10", "shakespeare")


def is_text(data: str) -> bool:
    """Whether `--data` is a text: each character of an example has a label, the next one."""
    return data in TEXTS or data.endswith(".txt")
