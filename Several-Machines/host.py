"""What a host has, as one line of JSON: asked of every host before a run starts on it.

python host.py EXAMPLE PORTS
"""

import hashlib
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from common import fail  # noqa: E402

try:
    import psutil  # noqa: F401 (every launcher needs it)

    from common.launch import network
    from common.record.summary import versions
except ModuleNotFoundError as error:
    fail(f"PYTHON={sys.executable} lacks {error.name}: install the packages of "
         "common/requirements.txt there, or unset PYTHON")  # fmt: skip


def describe(example: str, ports: int) -> dict:
    """This host's versions, and as many free ports as asked for."""
    found = versions() | {"code": digest(example)}
    return {"versions": found, "ports": network.free_ports(ports, private=False)}


def digest(example: str) -> str:
    """Identifies the code that a run of this example uses."""
    found = hashlib.sha256()
    for folder in ("common", example, Path(__file__).parent.name):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "results" not in path.relative_to(ROOT).parts:
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
