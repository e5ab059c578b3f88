"""What a host has, as one line of JSON: asked of every host before a run starts on it.

python host.py EXAMPLE PORTS
"""

import hashlib
import json
import os
import socket
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from common.launch import network, record  # noqa: E402


def describe(example: str, ports: int) -> dict:
    """This host's name, versions, cores, and as many free ports as asked for."""
    return {
        "host": socket.gethostname(),
        "versions": record.versions() | {"code": digest(example)},
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "ports": network.free_ports(ports, private=False),
    }


def digest(example: str) -> str:
    """Identifies the code that a run of this example uses: its folder and common/."""
    found = hashlib.sha256()
    for folder in ("common", example):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "results" not in path.parts:
                found.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    return found.hexdigest()[:12]


def difference(found: dict[str, dict]) -> str:
    """A sentence that names two hosts with different versions of something; "" if all agree.

    Args:
        found: what `describe` said on each host, by the host's name.
    """
    (first, mine), *others = found.items()
    for name, theirs in others:
        for what, here in mine["versions"].items():
            there = theirs["versions"][what]
            if here != there:
                if what == "code":
                    return f"{first} and {name} have different code: copy the same folder to both"
                return (f"{first} has {what} {here} and {name} has {there}: install the same "
                        "version on all hosts")  # fmt: skip
    return ""


if __name__ == "__main__":
    print(json.dumps(describe(sys.argv[1], int(sys.argv[2]))))
