"""Counts the GPUs without importing TensorFlow."""

import os
import subprocess


def count() -> int:
    """The number of NVIDIA GPUs that `CUDA_VISIBLE_DEVICES` lets a new process use."""
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    there = sum(line.startswith("GPU ") for line in done.stdout.splitlines())
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return there
    named = chosen.split(",")
    last = named.index("-1") if "-1" in named else len(named)  # CUDA ignores what follows it
    return min(there, len([name for name in named[:last] if name]))
