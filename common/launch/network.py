"""A private network for a run on one machine, and ports for its servers.

TensorFlow's servers listen on every interface and have no authentication: anyone who reaches a port
can run graphs, and read and write files, as you. In a separate Linux network namespace, only the
run itself can reach them.
"""

import collections
import ctypes
import fcntl
import importlib.util
import os
import random
import socket
import struct
import sys
from collections.abc import Callable

from common import fail
from common.launch import link

_reserved: collections.deque[socket.socket] = collections.deque()  # see free_ports
_NEW_USER, _NEW_NET = 0x10000000, 0x40000000  # linux/sched.h
_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 0x1  # linux/sockios.h, linux/if.h


def _unshare(what: int) -> None:
    if ctypes.CDLL(None, use_errno=True).unshare(what):
        number = ctypes.get_errno()
        raise OSError(number, f"unshare: {os.strerror(number)}")


def _enter(mbit: float | None) -> None:
    """Moves this process, which must have only one thread, into a new network with only localhost.
    With `mbit`, its link is limited to that many Mbit/s."""
    uid, gid = os.getuid(), os.getgid()
    try:
        _unshare(_NEW_NET)
    except PermissionError:  # not root: allowed only in a user namespace that it owns
        _unshare(_NEW_USER | _NEW_NET)
        for name, text in (
            ("uid_map", f"{uid} {uid} 1"), ("setgroups", "deny"), ("gid_map", f"{gid} {gid} 1"),
        ):  # fmt: skip
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    with socket.socket() as any_socket:
        request = struct.pack("16sh", b"lo", 0)
        _, flags = struct.unpack("16sh", fcntl.ioctl(any_socket, _GET_FLAGS, request))
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh", b"lo", flags | _UP))
    if mbit:
        link.limit(mbit)


def can_be_private(mbit: float | None = None) -> str:
    """Tries to enter a private network, in a child process. Returns why it fails, or "".

    With `mbit`, the network's link is limited to that many Mbit/s.
    """
    if sys.platform != "linux":
        return "only Linux has network namespaces"
    if mbit and importlib.util.find_spec("pyroute2") is None:
        return f"{sys.executable} lacks the package pyroute2"
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _enter(mbit)
            answer = b""
        except OSError as error:
            answer = str(error).encode()
        os.write(writable, answer or b"\0")
        os._exit(0)
    os.close(writable)
    with open(readable, "rb") as file:
        answer = file.read()
    os.waitpid(child, 0)
    return answer.decode().strip("\0")


def choose(wanted: str, say: Callable[[str], None], mbit: float | None = None) -> str:
    """Applies `--network`: enters a private network if that is wanted and possible.

    Args:
        wanted: `auto`, `private` or `host`.
        say: called with a one-line warning if the servers are exposed.
        mbit: `--link_mbit`, which requires a private network.

    Returns:
        `private` or `host`.

    Raises:
        SystemExit: with a one-line error, if a private network is required and not possible.
    """
    why = "because of --network host" if wanted == "host" else can_be_private(mbit)
    if not why:
        _enter(mbit)
        return "private"
    if mbit:
        fail(
            f"--link_mbit {mbit:g}: this system does not allow private networks with such a link "
            f"({why}): run .venv/bin/python -m common.commands.doctor to see what to do"
        )
    if wanted == "private":
        fail(f"--network private: this system does not allow it ({why}): run .venv/bin/python -m "
             "common.commands.doctor to see what to do")  # fmt: skip
    say(f"warning: the servers of this run listen on all interfaces of this machine, without "
        f"authentication ({why}): run only on a network that you trust")  # fmt: skip
    return "host"


def free_ports(count: int, private: bool) -> list[int]:
    """Ports for servers: 2222, 2223, ... in a private network, else random free ones.

    Random ports are below the system's range for outgoing connections: otherwise such a connection
    could take one before its server starts. On Linux, no other process that asks here gets them
    before this one has ended, or has asked for 100 more.
    """
    if private:
        return list(range(2222, 2222 + count))
    ports: list[int] = []
    family = socket.AF_INET6 if _has_ipv6() else socket.AF_INET
    for port in random.sample(range(20000, 32000), 4000):
        try:
            with socket.socket(family) as probe:
                probe.bind(("", port))
            _reserve(port)
        except OSError:
            continue
        ports.append(port)
        if len(ports) == count:
            return ports
    fail(f"cannot find {count} free ports between 20000 and 32000: start fewer tasks")


def _reserve(port: int) -> None:
    """Takes a name for the port that only one process of this network can have.

    The port itself must stay free, and its server starts seconds later.

    Raises:
        OSError: if another process has the name.
    """
    if sys.platform != "linux":
        return
    name = socket.socket(socket.AF_UNIX)
    try:
        name.bind(f"\0distributed-tensorflow/{port}")  # no file: it ends with the process
    except OSError:
        name.close()
        raise
    _reserved.append(name)
    if len(_reserved) > 100:
        _reserved.popleft().close()


def _has_ipv6() -> bool:
    """Whether this kernel has IPv6; `socket.has_ipv6` says whether Python was built with it."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("", 0))
    except OSError:
        return False
    return True
