"""The plumbing that all examples share; `README.md` in this folder lists the modules."""

import os
import sys

from common.record.faults import explain, fail

# TensorFlow's C++ core reads these during its import: hide notices and warnings, keep errors.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

sys.excepthook = explain

__all__ = ["fail"]


def _check_beside(script: str) -> None:
    """A script of a copied folder must not use another common/ than the copy's, without a word."""
    here = os.path.dirname(__file__)
    root = os.path.dirname(os.path.dirname(os.path.abspath(script)))
    beside = os.path.join(root, "common")
    ours = script.endswith(".py") and os.path.exists(os.path.join(beside, "setup.sh"))
    if ours and not os.path.samefile(beside, here):
        fail(f"{script} should use {beside}, but Python finds {here} first: start it with "
             f"PYTHONPATH={root}")  # fmt: skip


_check_beside(sys.argv[0])
