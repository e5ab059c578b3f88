"""The files of a results folder: each is whole or absent, and a reader never sees half a line.

`common/README.md` describes what they contain.
"""

import datetime
import json
import os
import uuid
from pathlib import Path
from typing import TextIO

from common.record import faults
from common.record.faults import fail

made: list[Path] = []  # the topmost folder that each `create` made


def create(folder: str | Path, flag: str = "--results") -> Path:
    """Creates a folder; exits with a one-line error naming `flag` if it is not writable."""
    path = Path(folder)
    probe = path / _hidden("probe")
    faults.folders.append(str(path))
    made.extend([p for p in (path, *path.parents) if not p.exists()][-1:])
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        fail(f"cannot write to {folder} ({error.strerror}): use another {flag}")
    return path


def _hidden(name: str) -> str:
    """A name that no other task uses: tasks in containers may have the same process number."""
    return f".{uuid.uuid4().hex}-{name}"


def now() -> str:
    """The name of a results folder: the local time."""
    return datetime.datetime.now().strftime("%Y-%m-%d-%H%M%S-%f")[:-3]


def write(path: Path, write_to) -> None:
    """Writes a file that appears whole or not at all: `write_to(file)`, binary, then renames."""
    temporary = path.with_name(_hidden(path.name))
    try:
        with open(temporary, "wb") as file:
            write_to(file)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def append(path: Path) -> TextIO:
    """Opens a .jsonl file to append lines; cuts off half a line, which a killed task may leave."""
    file = open(path, "a+", buffering=1, encoding="utf-8")
    file.seek(0)
    file.seek(file.truncate(file.read().rfind("\n") + 1))  # JSON in ASCII: one byte a character
    return file


def shown(path: Path | str) -> str:
    """A path as the user would type it: relative if it is below the current directory."""
    path = Path(path)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


class Lines:
    """Reads the complete lines added to a file since the last call, starting at byte `at`."""

    def __init__(self, path: Path, at: int = 0):
        self._path, self._at = path, at

    def read(self) -> list[str]:
        try:
            with open(self._path, "rb") as file:
                file.seek(self._at)
                block = file.read()
        except FileNotFoundError:
            return []
        block = block[: block.rfind(b"\n") + 1]
        self._at += len(block)
        return block.decode(errors="replace").splitlines()


class Tail(Lines):
    """The same for a .jsonl file, parsed."""

    def read(self) -> list[dict]:
        return [json.loads(text) for text in super().read()]
