"""How many GPUs there are, found without importing TensorFlow."""

import os
import subprocess


def count() -> int:
    """The NVIDIA GPUs that a process started now may use, as `CUDA_VISIBLE_DEVICES` allows."""
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
