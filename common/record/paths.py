"""Paths that a user types."""

import os
import re
from pathlib import Path


def local(text: str) -> Path:
    """The absolute path on this machine, so that tasks can run in any directory; `~` is the home
    folder.

    Raises:
        ValueError: says what the path must be.
    """
    if not text:
        raise ValueError("must be a path, not ''")
    if scheme := re.match(r"[A-Za-z][\w+.-]*://", text):
        raise ValueError(f"must be a path on this machine, not {text!r}: mount what is at "
                         f"{scheme[0]}, or copy it before or after the run")  # fmt: skip
    found = Path(os.path.expanduser(text)).absolute()  # Path.expanduser also changes "./~"
    if text[0] == "~" and os.path.expanduser(text) == text:
        raise ValueError(f"must be a path, and {text!r} begins with the home folder of a user who "
                         f"does not exist: to name a folder here, write './{text}'")  # fmt: skip
    if not str(found).isprintable():  # bytes that are not UTF-8 are not printable either
        raise ValueError(f"must be a path of printable UTF-8, not {str(found)!r}")
    return found
