"""The plumbing that every example shares; `README.md` beside this file says what is where."""

import atexit
import contextlib
import gc
import os

# Read by TensorFlow's C++ core while it is imported: hide its notices and warnings, keep errors.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")


@contextlib.contextmanager
def quick_import():
    """Around the import of TensorFlow: looking for garbage in what stays takes a quarter of the
    time, and most of the time that a process needs to end."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_on:
            gc.enable()
        atexit.register(gc.freeze)
