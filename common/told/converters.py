"""Converters for argparse: turn the text of a flag into a value, or say what it must be."""

import argparse
import contextlib
import math
import re

from common.record import paths


def _checked(kind: type, wanted: str, good):
    def convert(text: str):
        with contextlib.suppress(ValueError):
            if good(value := kind(text)):
                return value
        raise argparse.ArgumentTypeError(f"must be {wanted}, not {text!r}")

    return convert


def number(kind: type, wanted: str, good=lambda value: True):
    """Makes a converter to ints or finite floats that pass `good`; `wanted` describes them."""
    limit = 2**53 if kind is int else math.inf
    return _checked(kind, wanted, lambda value: abs(value) < limit and good(value))  # not NaN


COUNT = number(int, "a whole number, 1 or more and below 2^31", lambda value: 1 <= value < 2**31)
WHOLE = number(int, "a whole number, 0 or more and below 2^53", lambda value: value >= 0)
POSITIVE = number(float, "a number above 0", lambda value: value > 0)
SHARE = number(float, "a number above 0, at most 1", lambda value: 0 < value <= 1)
ZERO_TO_ONE = number(float, "0 or more and at most 1", lambda value: 0 <= value <= 1)
BELOW_ONE = number(float, "0 or more and below 1", lambda value: 0 <= value < 1)


def listed(convert):
    """Makes a converter for lists: `0.1,0.2` -> [0.1, 0.2]."""
    return lambda text: [convert(part) for part in text.split(",")]


def choice(known: tuple[str, ...]):
    """Makes a converter that accepts the known words."""
    return _checked(str, f"one of {', '.join(known)}", known.__contains__)


def delays(text: str) -> dict[int, float]:
    """`0:0.1,2:0.5` -> {0: 0.1, 2: 0.5}: seconds that each worker sleeps in every step."""
    found = re.findall(r"(\d+):(\d+(?:\.\d*)?|\.\d+)(?:,|$)", text)
    if ",".join(":".join(pair) for pair in found) != text or not found:
        raise argparse.ArgumentTypeError(f"must have the form K:SECONDS[,K:SECONDS], not {text!r}")
    return {int(worker): float(seconds) for worker, seconds in found}


def dataset(known: tuple[str, ...], *suffixes: str):
    """Makes a converter that accepts the known names, and paths with one of these suffixes."""
    names = f"one of {', '.join(known)}, " if known else ""
    files = " or ".join(f"PATH{suffix}" for suffix in suffixes)
    return _checked(lambda text: text if text in known else path(text), f"{names}{files}",
                    lambda value: value in known or value.endswith(suffixes))  # fmt: skip


def path(text: str) -> str:
    """The absolute path on this machine; `~` is the home folder."""
    try:
        return str(paths.local(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
