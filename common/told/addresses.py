"""Addresses of tasks, `host:port`: whether their form is right, and whether a server answers."""

import contextlib
import ipaddress
import re
import socket
import time
from collections.abc import Iterable

from common import fail


def split(address: str) -> tuple[str, int]:
    """`[::1]:2222` -> (`::1`, 2222), for an address of the right form."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def fault(address: str) -> str:
    """What is wrong with the form of an address, and what to write; empty if it is right."""
    form = f"{address!r} does not have the form host:port"
    if scheme := re.match(r"[A-Za-z][\w+.-]*://", address):
        return f"{form}: write {address[scheme.end() :].rstrip('/')!r}, without {scheme[0]}"
    host, _, port = address.rpartition(":")
    if _ip(host, ipaddress.IPv6Address) and port.isdecimal():
        return f"{form}: an IPv6 address needs brackets, as in '[{host}]:{port}'"
    if _ip(address, ipaddress.IPv6Address):
        return f"{form}: an IPv6 address needs brackets and a port, as in '[{address}]:2222'"
    if address and (address.endswith(("]", ":")) or ":" not in address):
        return f"{form}: the port is missing, as in '{address.rstrip(':')}:2222'"
    inside = re.fullmatch(r"\[(.*)\]", host)
    if not (_ip(inside[1], ipaddress.IPv6Address) if inside else re.fullmatch(r"[\w.-]+", host)):
        return f"{form}, such as 'a.example:2222', '10.0.0.1:2222' or '[fd00::1]:2222'"
    if not (re.fullmatch("[0-9]{1,5}", port) and 0 < int(port) < 65536):
        return f"{form}: a port is a whole number from 1 to 65535"
    return ""


def shared(addresses: Iterable[str]) -> str:
    """Says that two addresses, of the right form, are the same, under one name or two; else empty.

    All names of this machine itself, such as localhost and 127.0.0.1, are the same: a server
    listens at all of them.
    """
    seen: dict[tuple, str] = {}
    for address in addresses:
        host, port = split(address.lower())
        ip = _ip(host)
        ip = getattr(ip, "ipv4_mapped", None) or ip
        here = host == "localhost" or (ip and (ip.is_loopback or ip.is_unspecified))
        key = "localhost" if here else ip or host, port
        if key in seen:
            also = "" if seen[key] == address else f", since {seen[key]} is the same one"
            return f"two tasks have the same address {address}{also}: give each its own"
        seen[key] = address
    return ""


def _ip(text: str, kind=ipaddress.ip_address):
    """The IP address that the text is, or None."""
    with contextlib.suppress(ValueError):
        return kind(text)


def answers(address: str, seconds: float = 1.0) -> bool:
    """Whether something accepts connections at `host:port`."""
    try:
        socket.create_connection(split(address), seconds).close()
    except OSError:
        return False
    return True


def wait_for(name: str, address: str, timeout: float) -> None:
    """Tries `address` until it answers, and prints what it waits for; fails after `timeout` s."""
    begun = said = time.monotonic()
    while not answers(address):
        now = time.monotonic()
        if now - begun > timeout:
            fail(f"{name} did not answer at {address} within {timeout:g} s: start it, or correct "
                 "its address")  # fmt: skip
        if now - said > 5:
            print(f"waiting for {name} at {address} ...", flush=True)
            said = now
        time.sleep(0.1)  # poll: a server that is not up yet cannot notify us
