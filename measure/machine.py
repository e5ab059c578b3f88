"""Measures how slow this machine is now; time limits scale with it."""

import math
import subprocess
import sys
import time

USUAL = 0.5  # seconds that the loop takes on a typical machine
LOOP = """
import time
began = time.perf_counter()
total = 0
for i in range(10_000_000):
    total += i
print(time.perf_counter() - began)
"""


_when, _slowness = -math.inf, 1.0  # the last measurement


def measured() -> float:
    """How many times slower than a usual machine this one is, at least 1. Takes about a second.

    Two loops run at once, because a run has several processes and the cores may be shared.
    """
    command = [sys.executable, "-S", "-c", LOOP]
    loops = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    took = [float(loop.communicate()[0]) for loop in loops]
    return max(1.0, max(took) / USUAL)


def renew() -> None:
    """Measures again if the last time was over three minutes ago, since the load changes.

    Call it between tests, when none of their processes is running.
    """
    global _when, _slowness
    if time.monotonic() - _when > 180:
        _slowness = measured()
        _when = time.monotonic()


def take_over(known: float) -> None:
    """Starts from the measurement of another process, since this one is not alone."""
    global _when, _slowness
    _when, _slowness = time.monotonic(), known


def slowness() -> float:
    """The last measurement."""
    if _when == -math.inf:
        renew()
    return _slowness


def seconds(usual: float) -> float:
    """Converts seconds on a usual machine to seconds here."""
    return usual * slowness()
