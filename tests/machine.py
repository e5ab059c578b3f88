"""How slow this machine is today: the unit of every limit in seconds in the tests."""

import math
import subprocess
import sys
import time

USUAL = 0.5  # seconds that the loop takes on a usual machine
LOOP = """
import time
began = time.perf_counter()
total = 0
for i in range(10_000_000):
    total += i
print(time.perf_counter() - began)
"""


_when, _slowness = -math.inf, 1.0  # what was measured last


def measured() -> float:
    """This machine's time over that of a usual one just now, at least 1; takes a second or so.

    Two loops run at once, because a run has several processes and the cores may be shared.
    """
    command = [sys.executable, "-S", "-c", LOOP]
    loops = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    took = [float(loop.communicate()[0]) for loop in loops]
    return max(1.0, max(took) / USUAL)


def renew() -> None:
    """Measures again if that was over a minute ago: meanwhile others may have come or gone.

    Called between tests, where no process of ours is in the way.
    """
    global _when, _slowness
    if time.monotonic() - _when > 60:
        _slowness = measured()
        _when = time.monotonic()


def slowness() -> float:
    """What was measured last."""
    if _when == -math.inf:
        renew()
    return _slowness


def seconds(usual: float) -> float:
    """What `usual` seconds on a usual machine are on this one."""
    return usual * slowness()
