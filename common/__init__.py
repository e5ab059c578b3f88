"""The plumbing that every example shares; `README.md` beside this file says what is where."""

import os

# Read by TensorFlow's C++ core while it is imported: hide its notices, keep warnings and errors.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
