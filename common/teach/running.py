"""Runs an example from a notebook, and reads what it measured."""

import json
import os
import queue
import re
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np

from common.launch import processes
from common.pictures import palette, timeline
from common.record import trace
from common.teach import progress
from common.teach.scratch import ROOT, SCRATCH


class Run:
    """A finished run: what it wrote into its results folder."""

    def __init__(self, folder: Path, screen: str):
        self.folder, self.screen = folder, screen
        self.summary: dict = json.loads((folder / "summary.json").read_text())
        self.example = ROOT / self.summary["scheme"]
        self.events: list[list[dict]] = trace.read_events(folder, self.summary["workers"])
        self.evaluations: list[dict] = trace.read_evaluations(folder)
        self.updates: list[dict] = trace.read_updates(folder, self.events)

    @property
    def steady(self) -> list[list[dict]]:
        """The events of each worker without the start of the run: `trace.steady`."""
        return trace.steady(self.events)

    @property
    def staleness(self) -> dict:
        """Mean, maximum, theory and histogram, without the start of the run."""
        return trace.staleness(self.steady)

    @property
    def speed(self) -> float:
        """Examples per second, without the start of the run."""
        steady = self.steady
        share = sum(map(len, steady)) / sum(map(len, self.events))
        first = min(trace.began(mine[0]) for mine in steady if mine)
        last = max(mine[-1]["time"] for mine in steady if mine)
        return self.summary["examples"] * share / (last - first)

    @property
    def per_batch(self) -> dict[str, float]:
        """Mean milliseconds that a worker spends on a mini-batch in each phase, without the start
        of the run."""
        total, batches = dict.fromkeys(palette.PHASES, 0.0), 0.0
        for mine, whole in zip(self.steady, self.events):
            if not mine:
                continue
            seconds = mine[-1]["time"] - trace.began(mine[0])
            total = {k: total[k] + share * seconds for k, share in timeline.shares(mine).items()}
            batches += len(mine) * trace.batches(whole) / len(whole)
        return {name: 1e3 * seconds / batches for name, seconds in total.items()}

    @property
    def bytes_per_step(self) -> float | None:
        """What all tasks sent for each step of a worker, between the first and the last reading of
        the counter during the steps: without start and end. None without a private network, or if
        there are not two such readings."""
        file = self.folder / "network.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        ends = [event["time"] for mine in self.events for event in mine]
        notes = [note for note in map(json.loads, lines) if min(ends) < note["time"] < max(ends)]
        if len(notes) < 2:
            return None
        first, last = notes[0], notes[-1]
        made = sum(first["time"] < end <= last["time"] for end in ends)
        return (last["bytes"] - first["bytes"]) / max(1, made)

    @property
    def parameters(self) -> list[np.ndarray]:
        """The final global parameters, in model order."""
        with np.load(self.folder / "parameters.npz") as file:
            return [file[name] for name in file.files]


def run(example: str | Path, *flags, show: bool = True) -> Run:
    """Runs `bash EXAMPLE/run.sh flags` to the end, with its loss and progress below the cell; then
    shows its table or, without `show`, only its command and result. `example` is a folder of the
    collection, or the path of a copy.

    If the kernel ends first, the run ends with it.

    Raises:
        RuntimeError: with the run's output, if it fails.
    """
    where = Path(tempfile.mkdtemp(prefix="run-", dir=SCRATCH), "results")
    folder = ROOT / example  # the path itself, if it is absolute
    example = folder.name
    command = ["bash", f"{folder}/run.sh", "--plain", "--results", where]
    task = processes.Process(
        example, 0, [*map(str, [*command, *flags])], where.with_name("screen.txt")
    )
    title = " ".join(map(str, [f"$ bash {example}/run.sh", *flags])).replace(f"{SCRATCH}/", "")
    output, state = progress.Output(f"{title}\nstarting ..."), progress.Progress(where)
    group, code = processes.Group(), None
    try:
        group.start(task, os.environ | {"PYTHON": sys.executable, "NO_CURVES": "1"})
        while code is None:
            try:
                _, code = group.exits.get(timeout=0.3)
            except queue.Empty:
                output.replace(f"{title}\n{state.line()}")
    finally:  # even if the reader interrupts the cell
        group.kill()
    text = task.log.read_text()
    if code:
        raise RuntimeError(f"{example} ended with exit code {code}:\n{text}")
    screen = re.sub(r"[;,]? *(logs and )?results in \S+", "", text)
    table = screen[screen.index("task ") :].rstrip()
    output.end(f"{title}\n{table if show else table.splitlines()[-1]}")
    return Run(where, screen)


def changed(example: str | Path, before: str, after: str) -> Path:
    """Copies an example (or such a copy) with `common/` into the kernel's temporary folder, with
    one piece of its `worker.py` replaced; returns the copy, which `run` can start.

    Raises:
        ValueError: unless `worker.py` contains `before` exactly once.
    """
    root = Path(tempfile.mkdtemp(prefix="changed-", dir=SCRATCH))
    copy = root / Path(example).name
    for source, target in ((ROOT / example, copy), (ROOT / "common", root / "common")):
        leave = shutil.ignore_patterns("results", "__pycache__")
        shutil.copytree(source, target, ignore=leave)
    script = copy / "worker.py"
    text = script.read_text(encoding="utf-8")
    if text.count(before) != 1:
        raise ValueError(f"{copy.name}/worker.py contains {text.count(before)} times: {before}")
    script.write_text(text.replace(before, after), encoding="utf-8")
    return copy
