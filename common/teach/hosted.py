"""Installs what a notebook needs on a host that has its own Python, like Colab.

    python common/teach/hosted.py

What is there stays as it is, TensorFlow too: a kernel that has loaded one version cannot change to
another. If its version is one that is not tested, says so.
"""

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def needed() -> dict[str, str]:
    """The packages of pyproject.toml: each one's name, and the range that is tested."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    block = re.search(r"^dependencies = \[(.*?)^\]", text, re.M | re.S)[1]
    return dict(re.findall(r'^ +"([\w-]+)([^";]+)', block, re.M))


def version(name: str) -> str | None:
    """The installed one; None if there is none."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def main() -> None:
    """Exits with pip's code if it fails."""
    packages = needed()
    missing = [name + tested for name, tested in packages.items() if version(name) is None]
    if missing:
        command = [sys.executable, "-m", "pip", "install", "--quiet", *missing]
        if code := subprocess.run(command, check=False).returncode:
            sys.exit(code)
    have, tested = version("tensorflow"), packages["tensorflow"]
    lowest = re.search(r"\d+\.\d+", tested)[0]
    if have and not f"{have}.".startswith(f"{lowest}."):
        print(f"This host has TensorFlow {have}; the collection is tested with {lowest}.")


if __name__ == "__main__":
    main()
