"""The plumbing that every example shares; `README.md` beside this file says what is where."""

import contextlib
import os
import sys
from typing import NoReturn

# Read by TensorFlow's C++ core while it is imported: hide its notices and warnings, keep errors.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")


failed = 0  # the exit code, once this process has failed with a sentence


def fail(message: str) -> NoReturn:
    """Ends this process with one sentence for the user and exit code 2."""
    global failed
    failed = 2
    print(f"error: {message}", file=sys.stderr, flush=True)
    raise SystemExit(2)


def _explain(kind, error, trace) -> None:
    """What this machine lacks also ends a process with one sentence, not with a traceback."""
    from common.launch import faults

    if sentence := faults.sentence(error):
        with contextlib.suppress(OSError):  # its log may be on the disk that is full
            print(f"error: {sentence}", file=sys.stderr, flush=True)
        os._exit(2)  # to leave as usual would write more
    sys.__excepthook__(kind, error, trace)


sys.excepthook = _explain
