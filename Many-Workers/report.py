"""What a simulated run shows and leaves: the same files as a real run."""

import contextlib
import json
import time
from pathlib import Path

import numpy as np
from journal import LOGGED, Journal
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from common.launch import screen
from common.record import results
from common.told.about import About


class Report:
    """Writes into the results folder `where`, and shows progress: a bar on a terminal, otherwise a
    line every two seconds."""

    def __init__(self, flags, where: Path):
        self.where, self.files, self.shown = where, {}, time.monotonic()
        console = Console(highlight=False, soft_wrap=True)
        columns = (TextColumn("update {task.completed:,.0f}/{task.total:,.0f}"), BarColumn(),
                   TextColumn("{task.fields[status]}"))  # fmt: skip
        self.plain = flags.plain or not console.is_terminal
        self.bar = Progress(*columns, console=console, disable=self.plain, transient=True)
        self.task = self.bar.add_task("", total=flags.steps, status="starting")
        self.open = contextlib.ExitStack()

    def __enter__(self) -> "Report":
        self.open.enter_context(self.bar)
        return self

    def __exit__(self, *exception) -> None:
        self.open.close()

    def write(self, name: str, line: dict) -> None:
        """Appends a line to `NAME.jsonl`."""
        if name not in self.files:
            path = self.where / f"{name}.jsonl"
            self.files[name] = self.open.enter_context(open(path, "a", encoding="utf-8"))
        self.files[name].write(json.dumps(line) + "\n")

    def show(self, journal: Journal, number: int) -> None:
        """Moves the bar, at most five times a second, or prints a line."""
        if time.monotonic() - self.shown < (2 if self.plain else 0.2):
            return
        self.shown, status = time.monotonic(), f"{journal.time:,.1f} simulated seconds"
        if journal.evaluations:
            status += f", test accuracy {journal.evaluations[-1]['test_accuracy']:.1%}"
        if self.plain:
            print(f"update {number:,}/{journal.flags.steps:,} {status}", flush=True)
        self.bar.update(self.task, completed=number, status=status)

    def finish(self, cluster, journal: Journal) -> None:
        """Writes parameters, picture and summary; prints the table."""
        found, problem = journal.summary(cluster), journal.problem
        if problem.size:
            arrays = problem.named(cluster.w)
            results.write(self.where / "parameters.npz", lambda file: np.savez(file, **arrays))
        # Matplotlib takes a third of a second to import, and the processes of `grid.py` need none.
        from common.pictures import curves

        curves.draw(self.where, found)
        text = json.dumps(found, indent=2) + "\n"
        results.write(self.where / "summary.json", lambda file: file.write(text.encode()))
        shown = found["tasks"][: len(cluster.down) + LOGGED]
        screen.table(found | {"tasks": shown}, self.where, About())
