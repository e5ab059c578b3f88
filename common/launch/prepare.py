"""Checks packages, memory and data before any task starts; downloads the data."""

import contextlib
import importlib.util
import math
import os
import re
import resource
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from common import datasets, fail
from common.datasets import download
from common.record import faults

TASK = 0.2e9  # bytes of memory: the least that any task needs; most need up to 1 GB
COPY = 0.2e6  # bytes for each copy of a step (--steps_per_execution)
RESERVED = 4 << 30  # bytes of address space that TensorFlow reserves, mostly for its threads

# The user's PYTHON may lack these; `__main__` reports it. Importing them to find out is too slow.
for _package in ("numpy", "tensorflow", "matplotlib", "rich"):
    if importlib.util.find_spec(_package) is None:
        raise ModuleNotFoundError(f"no {_package}", name=_package)


def packages(folder: Path) -> None:
    """Exits with a one-line error if a script of the folder imports a missing module."""
    for script in sorted(folder.glob("*.py")):
        text = script.read_text(encoding="utf-8")
        for name in re.findall(r"^(?:import|from(?=.* import )) (\w+)", text, re.M):
            if not (folder / f"{name}.py").is_file() and importlib.util.find_spec(name) is None:
                fail(
                    f"{folder.name}/{script.name} imports {name}, which PYTHON={sys.executable} "
                    "lacks: install it there, or unset PYTHON if common/requirements.txt has it"
                )


def machine(flags) -> None:
    """Exits with a one-line error if this machine has too little memory for the flags."""
    if gone := faults.no_directory():
        fail(gone)
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if 0 <= limit < RESERVED:
        fail(
            f"a process may reserve only {limit / 1e9:.1f} GB of memory here, and TensorFlow "
            f"needs {RESERVED / 1e9:.1f} GB: raise the limit with ulimit -v"
        )
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, ValueError):  # no limit reads "max"
        there = min(there, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    needs = memory(flags)
    if needs > there:
        size = (
            "--layers, --width, --context" if getattr(flags, "model", None) == "gpt" else "--hidden"
        )
        fail(
            f"this run needs at least {needs / 1e9:,.0f} GB of memory, but this machine has "
            f"{there / 1e9:,.0f} GB: lower --workers, --ps, --threads, {size}, --batch_size "
            "or --steps_per_execution, or use data with fewer classes"
        )


def memory(flags) -> float:
    """The fewest bytes that a run needs: tasks, parameters on the ps and each worker, batches."""
    alone = getattr(flags, "threads", None)
    needs = TASK if alone else TASK * (flags.workers + flags.ps)
    needs += COPY * flags.workers * (flags.steps_per_execution or 1)
    if datasets.is_known(flags):
        example, classes, _ = datasets.describe(flags)
        features = math.prod(example)
        weights = {
            "linear": lambda: features * classes,
            "mlp": lambda: (flags.hidden or 1) * (features + classes),
            "cnn": lambda: 2 * features * classes,
            "gpt": lambda: flags.width * (12 * flags.layers * flags.width + classes),
        }.get(flags.model, int)()
        batch = (flags.batch_size or 1) * features
        if flags.model == "gpt":  # how much each character attends to each one, for the gradients
            batch *= 1 + flags.layers * flags.heads * flags.context
        needs += 4 * (weights * (1 + 2 * flags.workers) + batch * flags.workers)
    return needs


def fetch(flags, say=print, own: Mapping = MappingProxyType({})) -> None:
    """Downloads and extracts the data if needed. `own`: the downloads of the example's `about.py`.

    Raises:
        SystemExit: with a one-line error, if that fails.
    """
    if flags.data in datasets.known.DOWNLOADED:
        datasets.reader(flags.data).fetch(flags, say)
    elif flags.data in own:
        download.fetch(flags.data, flags.data_url, say, own[flags.data])


def check(flags) -> None:
    """Checks an .npz, and the size of a shard. An example checks other kinds of files itself.

    Raises:
        SystemExit: with a one-line error, if the data does not fit the flags.
    """
    if not datasets.is_known(flags):
        return
    example, _, size = datasets.describe(flags)
    if math.prod(example) == 0:
        fail(f"--data {flags.data}: examples of shape {list(example)} have no features")
    if flags.model == "cnn":
        datasets.image(example)
    if flags.workers > size and not datasets.only_shard(flags):
        fail(f"--workers {flags.workers}: the training set has only {size} examples")
