"""Writes a task's files into the results folder; `common/README.md` describes them."""

import atexit
import datetime
import importlib
import os
from pathlib import Path
from typing import NoReturn, TextIO

from common import fail

written: list[str] = []  # the folders that this process writes to
made: list[Path] = []  # the topmost folder that each `create` made
opened: list[tuple] = []  # flags, worker and first byte of each events file that it appends to


def create(folder: str | Path, flag: str = "--results") -> Path:
    """Creates a folder; exits with a one-line error naming `flag` if it is not writable."""
    path = Path(folder)
    probe = path / f".probe-{os.getpid()}"
    written.append(str(path))
    made.extend([p for p in (path, *path.parents) if not p.exists()][-1:])
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        fail(f"cannot write to {folder} ({error.strerror}): use another {flag}")
    return path


def now() -> str:
    """The name of a results folder: the local time."""
    return datetime.datetime.now().strftime("%Y-%m-%d-%H%M%S-%f")[:-3]


def write(path: Path, write_to) -> None:
    """Writes a file that appears whole or not at all: `write_to(file)`, binary, then renames."""
    temporary = path.with_name(f".{os.getpid()}-{path.name}")
    try:
        with open(temporary, "wb") as file:
            write_to(file)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def events_file(folder: str | Path, worker: int) -> Path:
    return Path(folder) / f"events-worker-{worker}.jsonl"


def append(path: Path) -> TextIO:
    """Opens a .jsonl file to append lines; cuts off half a line, which a killed task may leave."""
    file = open(path, "a+", buffering=1, encoding="utf-8")
    file.seek(0)
    file.seek(file.truncate(file.read().rfind("\n") + 1))  # JSON in ASCII: one byte a character
    return file


def open_events(flags, worker: int) -> TextIO:
    """Opens a worker's events to append lines; prints their summary when this process ends."""
    file = append(events_file(flags.results, worker))
    if not opened:
        atexit.register(lambda: importlib.import_module("common.training.closing").say(opened))
    opened.append((flags, worker, file.tell()))
    return file


def line(worker: int, step: int, loss: float, staleness: int) -> str:
    """The line that the screen shows for a step."""
    return f"[worker {worker}] step {step}  loss {loss:.4g}  staleness {staleness}"


def diverged(task, what: str) -> NoReturn:
    """Exits with a one-line error: the loss `what` is NaN or infinite."""
    fail(f"{what} is NaN or infinite: try a smaller --learning_rate than "
         f"{task.flags.learning_rate:g} (in asynchronous schemes, the more workers, here "
         f"{task.flags.workers}, the smaller it must be)")  # fmt: skip
