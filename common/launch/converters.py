"""What the words of a command line become, and the sentence where they cannot: for argparse."""

import argparse
import math
import re
from pathlib import Path


def number(kind: type, least: float = -math.inf, strict: bool = False):
    """A converter: a finite `kind` of at least (`strict`: above) `least`."""

    def convert(text: str):
        wanted = "a whole number" if kind is int else "a number"
        if least > -math.inf:
            wanted += f" above {least:g}" if strict else f", {least:g} or more"
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        most = 2**53 if kind is int else math.inf
        good = value > least if strict else value >= least  # not of NaN
        if not (good and -most < value < most):
            raise argparse.ArgumentTypeError(f"must be {wanted}, not {text!r}")
        return value

    return convert


def numbers(kind: type, least: float = -math.inf, strict: bool = False):
    """A converter: `0.1,0.2` -> [0.1, 0.2]."""
    return lambda text: [number(kind, least, strict)(part) for part in text.split(",")]


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
