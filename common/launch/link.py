"""The link of a run's private network: counts its bytes, and limits its speed (`--link_mbit`).

All traffic between tasks passes through the loopback device of their network. A token bucket
filter, one of the kernel's queueing disciplines, makes it as slow as a link between machines.
pyroute2 sets it, not `tc`: that program may be missing, and without root it would not inherit the
right to change the network.
"""

import contextlib
import json
import os
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

SYSCTL = Path("/proc/sys/net/ipv4")  # of this process's network
# How TCP sends over such a link, whatever this machine's settings are. With BBR, some workers stay
# half as fast as others. If a connection has never seen a round trip below 0.5 ms, which on a busy
# link is chance, the kernel sends its messages in small pieces, else at once. Here all send at
# once, as between machines near each other. Nor do they begin slowly again after a pause.
TCP = {
    "tcp_congestion_control": "reno",  # the only one that every kernel has, and allows
    "tcp_slow_start_after_idle": "0",
    "tcp_tso_rtt_log": "31",  # since Linux 5.18; before, all connections send small pieces
}
MTU = 1500  # bytes per packet, as on Ethernet; the loopback's default is 65,536
_ROOT, _MOST = 2**32 - 1, 2**32 - 1  # linux/pkt_sched.h; the largest number in the kernel's fields


def limit(mbit: float) -> None:
    """Limits this process's private network to `mbit` Mbit/s (at most 34,000, at least 0.001).

    All tasks share the link, in both directions. Its queue holds 0.4 s of traffic; the kernel drops
    packets when it is full, and TCP resends them. All connections send alike (see `TCP`): who comes
    first is served first.

    Raises:
        OSError: if the kernel has no token bucket filter.
    """
    with _kernel("the loopback's MTU") as kernel:
        kernel.link("set", index=socket.if_nametoindex("lo"), mtu=MTU)
    for name, value in TCP.items():
        if (SYSCTL / name).exists():
            (SYSCTL / name).write_text(value)
    discipline("tbf", **bucket(mbit))


def bucket(mbit: float) -> dict[str, int]:
    """The token bucket of such a link: bytes per second, and bytes."""
    rate = min(max(125, round(mbit * 1e6 / 8)), _MOST)
    burst = max(2 * MTU, rate // 5000)  # after a pause, 0.2 ms of traffic passes at once
    queue = min(max(20 * MTU, int(0.4 * rate)) + burst, _MOST)
    return {"rate": rate, "burst": burst, "limit": queue}


def discipline(kind: str, **options: int) -> None:
    """Sets the queueing discipline of this process's network: `noqueue` is the loopback's own,
    `blackhole` drops every packet.

    Raises:
        OSError: if the kernel does not have it.
    """
    with _kernel(f"queueing discipline {kind}") as kernel:
        kernel.tc("replace", kind, socket.if_nametoindex("lo"), parent=_ROOT, **options)


@contextlib.contextmanager
def _kernel(what: str) -> Iterator:
    """A connection to the kernel, which changes `what`. If it refuses, raises OSError."""
    # Imported here, since that takes 0.3 s, and few runs have a slow link.
    from pyroute2 import IPRoute, NetlinkError

    try:
        with IPRoute() as kernel:
            yield kernel
    except NetlinkError as error:
        raise OSError(error.code, f"{what}: {os.strerror(error.code)}") from None


def bytes_sent() -> int:
    """Bytes that this process's loopback has sent, headers and acknowledgements included."""
    text = Path("/proc/self/net/dev").read_text()
    return int(re.search(r"^ *lo:(?: *\d+){8} *(\d+)", text, re.M)[1])


class Meter:
    """Appends the number of bytes sent so far to `network.jsonl`, about every 0.2 s. On a network
    that is not `private`, it does nothing: other programs use that one too."""

    def __init__(self, folder: Path, private: bool):
        self._path, self._private = folder / "network.jsonl", private

    def note(self) -> None:
        if self._private:
            line = json.dumps({"time": time.time(), "bytes": bytes_sent()})
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(line + "\n")
