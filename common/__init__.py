"""The plumbing that all examples share; `README.md` in this folder lists the modules."""

import os
import sys

from common.record.faults import explain, fail

# TensorFlow's C++ core reads these during its import: hide notices and warnings, keep errors.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

sys.excepthook = explain

__all__ = ["fail"]
