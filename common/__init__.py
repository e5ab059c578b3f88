"""The plumbing that all examples share; `README.md` in this folder lists the modules."""

import contextlib
import os
import sys
from typing import NoReturn

# TensorFlow's C++ core reads these during its import: hide notices and warnings, keep errors.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")


failed = 0  # the exit code once `fail` has been called


def fail(message: str) -> NoReturn:
    """Prints a one-line error for the user and exits with code 2."""
    global failed
    failed = 2
    print(f"error: {message}", file=sys.stderr, flush=True)
    raise SystemExit(2)


def _explain(kind, error, trace) -> None:
    """Exits with a one-line error, not a traceback, if the machine lacks something."""
    from common.launch import faults

    if sentence := faults.sentence(error):
        with contextlib.suppress(OSError):  # the log may be on the full disk
            print(f"error: {sentence}", file=sys.stderr, flush=True)
        os._exit(2)  # a normal exit would write more
    sys.__excepthook__(kind, error, trace)


sys.excepthook = _explain
