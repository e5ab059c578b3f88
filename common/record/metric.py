"""The metric of a run: what says how well its parameters do on the test set.

Whoever shows it reads it from the results: it is `test_accuracy` if there is one, otherwise the
first of the test's measures.
"""

from collections.abc import Mapping

ACCURACY = "test_accuracy"


def key(found: Mapping) -> str | None:
    """The metric's key in an evaluation or a summary; None if there was no test."""
    tests = [name for name in found if name.startswith("test_")]
    return ACCURACY if ACCURACY in tests else next(iter(tests), None)


def name(found: Mapping) -> str:
    """In words: `test accuracy`, `test RMSE`."""
    return (key(found) or "").replace("_", " ")


def value(found: Mapping, digits: int = 2) -> str:
    """The value as people read it: an accuracy in percent, with so many digits after the point."""
    metric = key(found)
    if metric is None:
        return ""
    return f"{found[metric]:.{digits}%}" if metric == ACCURACY else f"{found[metric]:.4g}"


def text(found: Mapping) -> str:
    """`test accuracy 97.50%`, `test RMSE 0.5123`; empty if there was no test."""
    return f"{name(found)} {value(found)}".strip()
