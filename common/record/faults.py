"""Faults in words: one sentence for the user, which `run.sh` shows as the reason why a run ended.

Some are the user's (`fail`), some the machine's: disk space, memory, a current directory.
"""

from __future__ import annotations  # the doctor runs on older Pythons, too

import contextlib
import errno
import os
import shutil
import sys
from pathlib import Path
from typing import NoReturn

failed = 0  # the exit code once `fail` has been called
folders: list[str] = []  # those that this process writes to
FULL = tuple(map(os.strerror, (errno.ENOSPC, errno.EDQUOT)))
# How TensorFlow, NumPy, Python and the C library report it.
NO_MEMORY = (
    "OOM when allocating", "Unable to allocate", "annot allocate memory", "bad_alloc", "mmap error",
    "pthread_create", "can't start new thread", "failed to map segment",
)  # fmt: skip
MORE_MEMORY = (
    "not enough memory: use fewer tasks, a smaller network or smaller batches, or raise "
    "the limit (ulimit -v)"
)


def fail(message: str) -> NoReturn:
    """Prints a one-line error for the user and exits with code 2."""
    global failed
    failed = 2
    print(f"error: {message}", file=sys.stderr, flush=True)
    raise SystemExit(2)


def explain(kind, error, trace) -> None:
    """For `sys.excepthook`: exits with a one-line error, not a traceback, if the machine lacks
    something."""
    if said := sentence(error):
        with contextlib.suppress(OSError):  # the log may be on the full disk
            print(f"error: {said}", file=sys.stderr, flush=True)
        os._exit(2)  # a normal exit would write more
    sys.__excepthook__(kind, error, trace)


def sentence(error: BaseException | None, cache: str | Path = "") -> str:
    """The one-line error for an exception; empty if the machine is not to blame.

    `cache` is the folder of downloads, if one was being written.
    """
    while isinstance(error, Exception):
        number, text = getattr(error, "errno", None), str(error)
        if number in (errno.ENOSPC, errno.EDQUOT) or any(why in text for why in FULL):
            return full_disk(cache)
        if isinstance(error, MemoryError) or number == errno.ENOMEM or in_words(text):
            return MORE_MEMORY
        if isinstance(error, FileNotFoundError) and (gone := no_directory()):
            return gone
        error = error.__cause__ or error.__context__
    return ""


def full_disk(cache: str | Path = "") -> str:
    """The error for a full disk: names the folder in use that has the least space."""
    if cache:
        return f"the disk is full: make room in {cache}, or set DATA_DIR to another folder"

    def free(folder: str) -> int:
        return shutil.disk_usage(folder).free if os.path.isdir(folder) else 0

    folder = min(folders, key=free, default=os.curdir)
    return f"the disk is full: make room in {folder}, or use another --results"


def in_words(text: str) -> bool:
    """Whether a text, such as a log, reports a lack of memory."""
    return any(why in text for why in NO_MEMORY)


def no_directory() -> str:
    """The error if the current directory was deleted, else an empty string."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return "the current directory has been deleted: change to another one and start again"
    return ""


def diverged(task, what: str) -> NoReturn:
    """Exits with a one-line error: the loss `what` is NaN or infinite."""
    fail(f"{what} is NaN or infinite: try a smaller --learning_rate than "
         f"{task.flags.learning_rate:g} (in asynchronous schemes, the more workers, here "
         f"{task.flags.workers}, the smaller it must be)")  # fmt: skip
