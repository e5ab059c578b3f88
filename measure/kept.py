"""What an instrument has found, in one JSON file, which is whole at any time."""

import json
from pathlib import Path


def read(path: Path) -> dict:
    """What the file holds; nothing if there is none yet."""
    return json.loads(path.read_text()) if path.exists() else {}


def write(path: Path, found: dict, indent: int | None = None) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(found, allow_nan=False, indent=indent) + "\n")
    part.replace(path)
