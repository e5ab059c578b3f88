"""A temporary folder that disappears with the kernel."""

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRATCH = tempfile.mkdtemp(prefix="notebook-")
# Removes it when the kernel's end of the pipe closes, for whatever reason; retries for slow tasks.
_REMOVE = """
import os, shutil, sys, time
sys.stdin.read()
for _ in range(100):
    shutil.rmtree(sys.argv[1], ignore_errors=True)
    if not os.path.exists(sys.argv[1]):
        break
    time.sleep(0.1)
"""
_REMOVER = subprocess.Popen(
    [sys.executable, "-I", "-S", "-c", _REMOVE, SCRATCH],
    stdin=subprocess.PIPE,
    start_new_session=True,
)
