"""Pulls the cable of a run's private network for a given time: `cable.py PID SECONDS`.

During that time every packet is lost, and nobody is told, as with a real cable. Afterwards TCP
resends what was not acknowledged. (Taking the loopback down would be different: the kernel tells
the sender at once that there is no route.)
"""

import ctypes
import os
import sys
import time

from common.launch import link


def enter(pid: int) -> None:
    """Moves this process, which must have one thread, into the private network of another.

    Without the right to change that network, this process gains it by entering the network's user
    namespace, whose owner may do everything.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    for kind in ("user", "net"):
        theirs, mine = f"/proc/{pid}/ns/{kind}", f"/proc/self/ns/{kind}"
        if os.readlink(theirs) != os.readlink(mine):
            with open(theirs) as file:
                if libc.setns(file.fileno(), 0):
                    number = ctypes.get_errno()
                    raise OSError(number, f"setns {kind}: {os.strerror(number)}")


def main() -> None:
    pid, seconds = int(sys.argv[1]), float(sys.argv[2])
    if os.readlink(f"/proc/{pid}/ns/net") == os.readlink("/proc/self/ns/net"):
        sys.exit(f"error: process {pid} is in this machine's network, not in a private one")
    enter(pid)
    link.discipline("blackhole")
    print("cut", flush=True)
    try:
        time.sleep(seconds)
    finally:
        link.discipline("noqueue")


if __name__ == "__main__":
    main()
