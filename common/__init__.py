"""The plumbing that every example shares; `README.md` beside this file says what is where."""

import os
import sys
from typing import NoReturn

# Read by TensorFlow's C++ core while it is imported: hide its notices and warnings, keep errors.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")


def fail(message: str) -> NoReturn:
    """Ends this process with one sentence for the user and exit code 2."""
    print(f"error: {message}", file=sys.stderr, flush=True)
    raise SystemExit(2)
