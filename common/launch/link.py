"""The link of a run's private network: counts its bytes, and limits its speed (`--link_mbit`).

All traffic between tasks passes through the loopback device of their network. A token bucket
filter, one of the kernel's queueing disciplines, makes it as slow as a link between machines. This
module sets it with a netlink message, not with `tc`: that program may be missing, and without root
it would not inherit the right to change the network.
"""

import fcntl
import json
import os
import re
import socket
import struct
import time
from pathlib import Path

_SET_MTU = 0x8922  # linux/sockios.h
MTU = 1500  # bytes per packet, as on Ethernet; the loopback's default is 65,536
# linux/rtnetlink.h, linux/netlink.h, linux/pkt_sched.h
_NEW_QDISC, _REQUEST_ACK_REPLACE_CREATE, _ROOT = 36, 0x1 | 0x4 | 0x100 | 0x400, 0xFFFFFFFF
_KIND, _OPTIONS, _PARAMETERS, _RATE64, _BURST, _ETHERNET = 1, 2, 1, 4, 6, 1


def limit(mbit: float) -> None:
    """Limits this process's private network to `mbit` Mbit/s.

    All tasks share the link, in both directions. Its queue holds 0.4 s of traffic; the kernel drops
    packets when it is full, and TCP resends them.

    Raises:
        OSError: if the kernel has no token bucket filter.
    """
    rate = max(1, round(mbit * 1e6 / 8))  # bytes per second
    burst = max(2 * MTU, rate // 200)  # after a pause, 5 ms of traffic passes at once
    queue = max(20 * MTU, int(0.4 * rate)) + burst
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, _SET_MTU, struct.pack("16si", b"lo", MTU))
    # struct tc_tbf_qopt: rate (here only: Ethernet), no peak rate, queue, two unused fields.
    parameters = struct.pack("xB10x12xI8x", _ETHERNET, min(queue, 2**32 - 1))
    options = _attribute(_PARAMETERS, parameters) + _attribute(_RATE64, struct.pack("Q", rate))
    options += _attribute(_BURST, struct.pack("I", min(burst, 2**32 - 1)))
    discipline("tbf", _attribute(_OPTIONS, options))


def discipline(kind: str, options: bytes = b"") -> None:
    """Sets the queueing discipline of this process's network: `noqueue` is the loopback's own,
    `blackhole` drops every packet.

    Raises:
        OSError: if the kernel does not have it.
    """
    body = struct.pack("BxxxiIII", 0, socket.if_nametoindex("lo"), 0, _ROOT, 0)
    body += _attribute(_KIND, kind.encode() + b"\0") + options
    head = struct.pack("IHHII", 16 + len(body), _NEW_QDISC, _REQUEST_ACK_REPLACE_CREATE, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        kernel.send(head + body)
        (error,) = struct.unpack_from("i", kernel.recv(4096), 16)
    if error:
        raise OSError(-error, f"queueing discipline {kind}: {os.strerror(-error)}")


def _attribute(kind: int, data: bytes) -> bytes:
    return struct.pack("HH", 4 + len(data), kind) + data + bytes(-len(data) % 4)


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
