"""What a task leaves behind: events of every step, evaluations, the final parameters.

One line of `events-worker-K.jsonl` is one step (one window, in the window schemes):

    time         seconds since 1970, when the step was over
    local_step   mini-batches of this process so far
    global_step  which update of the global parameters the step made, from 1
    loss         of its (last) mini-batch
    staleness    updates by others between its pull and its push
    pulled_at    updates there had been at the pull
    pull, compute, push   seconds, by the clock of the worker
    out, gap     by the clock of the ps: seconds between the pull and the push, and between the push
                 before and this pull; null where there are none

With `--steps_per_execution N` a worker does not see when a push inside a call arrives: the
way there and the next parameters' way back are one `pull`, that of the next step.
"""

import datetime
import json
import os
import time
from pathlib import Path
from typing import NoReturn

import numpy as np

from common import fail


def create(folder: str | Path, flag: str = "--results") -> Path:
    """Makes a folder; one sentence naming `flag`, and exit code 2, where it cannot be written."""
    path = Path(folder)
    probe = path / f".probe-{os.getpid()}"
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
    """A file that appears whole or not at all: `write_to(temporary_path)`, then renamed."""
    temporary = path.with_name(f".{os.getpid()}-{path.name}")
    try:
        write_to(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def events_file(folder: str | Path, worker: int) -> Path:
    return Path(folder) / f"events-worker-{worker}.jsonl"


def note_evaluation(folder: str, found: dict) -> None:
    """Appends to `evaluations.jsonl` what the global parameters reached on the test set."""
    with open(Path(folder) / "evaluations.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps({"time": time.time()} | found) + "\n")


def save_parameters(folder: str | Path, arrays: dict[str, np.ndarray]) -> None:
    """`parameters.npz`, the global parameters in model order."""

    def save(path: Path) -> None:
        with open(path, "wb") as file:  # given a name, NumPy would append .npz to it
            np.savez(file, **arrays)

    write(Path(folder) / "parameters.npz", save)


def line(worker: int, step: int, loss: float, staleness: int) -> str:
    """How a step looks on the screen."""
    return f"[worker {worker}] step {step}  loss {loss:.4g}  staleness {staleness}"


def diverged(task, what: str) -> NoReturn:
    """Ends this process with one sentence: `what` is NaN."""
    fail(
        f"{what} is not a number any more: try a smaller --learning_rate than "
        f"{task.flags.learning_rate:g} (the more asynchronous workers, here {task.flags.workers}, "
        "the smaller it must be)"
    )
