"""Checks whether a server listens at an address, and waits until one does."""

import socket
import time

from common import fail


def answers(address: str, seconds: float = 1.0) -> bool:
    """Whether something accepts connections at `host:port`."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), seconds).close()
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
