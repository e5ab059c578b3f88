"""The metric of a run: what says how well its parameters do on the test set, or, in evaluations
during training, on the validation set.

Whoever shows it reads it from the results: it is `test_accuracy` if there is one, otherwise the
first of the test's measures.
"""

from collections.abc import Mapping

ACCURACIES = ("test_accuracy", "validation_accuracy")


def key(found: Mapping) -> str | None:
    """The metric's key in an evaluation or a summary; None if there was no test."""
    tests = [name for name in found if name.startswith(("test_", "validation_"))]
    return next((name for name in ACCURACIES if name in tests), next(iter(tests), None))


def name(found: Mapping) -> str:
    """In words: `test accuracy`, `test RMSE`."""
    return (key(found) or "").replace("_", " ")


def value(found: Mapping, digits: int = 2) -> str:
    """The value as people read it: an accuracy in percent, with so many digits after the point."""
    metric = key(found)
    if metric is None:
        return ""
    return f"{found[metric]:.{digits}%}" if metric in ACCURACIES else f"{found[metric]:.4g}"


def text(found: Mapping) -> str:
    """`test accuracy 97.50%`, `test RMSE 0.5123`; with `--patience`, which update's parameters have
    it; empty if there was no test."""
    best = found.get("best_step")
    of = "" if best is None else f" (of update {best:,}, the best)"
    return f"{name(found)} {value(found)}{of}".strip()
