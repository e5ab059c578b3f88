"""What a task leaves in the results folder; `common/README.md` describes the files."""

import atexit
import datetime
import json
import os
import time
from pathlib import Path
from typing import NoReturn, TextIO

from common import fail

written: list[str] = []  # the folders that this process writes to
made: list[Path] = []  # those that were not there before, or what is above them
opened: list[tuple] = []  # flags, worker and first byte of each events file that it appends to


def create(folder: str | Path, flag: str = "--results") -> Path:
    """Makes a folder; one sentence naming `flag`, and exit code 2, where it cannot be written."""
    path = Path(folder)
    probe = path / f".probe-{os.getpid()}"
    written.append(str(path))
    made.extend([p for p in (path, *path.parents) if not p.exists()][-1:])
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        fail(f"cannot write to {folder} ({error.strerror}): name another {flag}")
    return path


def now() -> str:
    """The name of a results folder: the local time."""
    return datetime.datetime.now().strftime("%Y-%m-%d-%H%M%S-%f")[:-3]


def write(path: Path, write_to) -> None:
    """A file that appears whole or not at all: `write_to(file)` of bytes, then renamed."""
    temporary = path.with_name(f".{os.getpid()}-{path.name}")
    try:
        with open(temporary, "wb") as file:
            write_to(file)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def events_file(folder: str | Path, worker: int) -> Path:
    return Path(folder) / f"events-worker-{worker}.jsonl"


def open_events(flags, worker: int) -> TextIO:
    """A worker's events, to append whole lines. The last line of this process sums them up."""
    file = open(events_file(flags.results, worker), "a", buffering=1, encoding="utf-8")
    if not opened:
        atexit.register(_sum_up)
    opened.append((flags, worker, file.tell()))
    return file


def _sum_up() -> None:
    from common.training import closing  # late: only now is it needed

    closing.say(opened)


def note_evaluation(folder: str, found: dict) -> None:
    """Appends to `evaluations.jsonl` what the global parameters reached on the test set."""
    with open(Path(folder) / "evaluations.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps({"time": time.time()} | found) + "\n")


def line(worker: int, step: int, loss: float, staleness: int) -> str:
    """How a step looks on the screen."""
    return f"[worker {worker}] step {step}  loss {loss:.4g}  staleness {staleness}"


def diverged(task, what: str) -> NoReturn:
    """Ends this process with one sentence: `what` is NaN."""
    fail(f"{what} is not a number any more: try a smaller --learning_rate than "
         f"{task.flags.learning_rate:g} (the more asynchronous workers, here {task.flags.workers}, "
         "the smaller it must be)")  # fmt: skip
