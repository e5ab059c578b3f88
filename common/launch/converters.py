"""What the words of a command line become, and the sentence where they cannot: for argparse."""

import argparse
import math
import re
from pathlib import Path


def number(kind: type, wanted: str, good=lambda value: True):
    """A converter: an int or a finite float that is `good`, which `wanted` says in words."""

    def convert(text: str):
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not (abs(value) < (2**53 if kind is int else math.inf) and good(value)):  # nor NaN
            raise argparse.ArgumentTypeError(f"must be {wanted}, not {text!r}")
        return value

    return convert


COUNT = number(int, "a whole number, 1 or more", lambda value: value >= 1)
WHOLE = number(int, "a whole number, 0 or more", lambda value: value >= 0)
POSITIVE = number(float, "a number above 0", lambda value: value > 0)
SHARE = number(float, "a number above 0, at most 1", lambda value: 0 < value <= 1)
ZERO_TO_ONE = number(float, "0 or more and at most 1", lambda value: 0 <= value <= 1)
BELOW_ONE = number(float, "0 or more and below 1", lambda value: 0 <= value < 1)


def listed(convert):
    """A converter: `0.1,0.2` -> [0.1, 0.2]."""
    return lambda text: [convert(part) for part in text.split(",")]


def choice(known: tuple[str, ...]):
    """A converter: one of the known words."""

    def convert(text: str) -> str:
        if text not in known:
            raise argparse.ArgumentTypeError(f"must be one of {', '.join(known)}, not {text!r}")
        return text

    return convert


def delays(text: str) -> dict[int, float]:
    """`0:0.1,2:0.5` -> {0: 0.1, 2: 0.5}: seconds that a worker sleeps in every step."""
    found = re.findall(r"(\d+):(\d+(?:\.\d*)?|\.\d+)(?:,|$)", text)
    if ",".join(":".join(pair) for pair in found) != text or not found:
        raise argparse.ArgumentTypeError(f"must read K:SECONDS[,K:SECONDS], not {text!r}")
    return {int(worker): float(seconds) for worker, seconds in found}


def dataset(known: tuple[str, ...], suffix: str = ".npz"):
    """A converter: one of the known names, or the path of a file with this suffix."""

    def convert(text: str) -> str:
        if text in known:
            return text
        if not text.endswith(suffix):
            names = f"one of {', '.join(known)} or " if known else ""
            raise argparse.ArgumentTypeError(f"must be {names}PATH{suffix}, not {text!r}")
        return path(text)

    return convert


def path(text: str) -> str:
    """Made absolute here, so that tasks may run in any directory."""
    return str(Path(text).absolute())
