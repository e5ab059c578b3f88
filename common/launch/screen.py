"""What a run prints: a progress line, a line per worker each second, and a final table."""

import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from common import datasets
from common.launch.folder import Folder
from common.record import results, trace
from common.record.words import counted
from common.told.about import About


class Screen:
    """Follows the events files while the tasks write them."""

    def __init__(self, folder: Folder, options, title: str, about: About):
        where, self._about = folder.path, about
        self._options, self._sizes = options, folder.sizes
        self._paths = [trace.events_file(where, k) for k in range(options.workers)]
        self._tails = [results.Tail(path, self._sizes.get(path, 0)) for path in self._paths]
        self._logs, self._said = where / "logs", {}
        self._step, self._examples, self._began = 0, 0, 0.0
        self._from = None
        self._printed = [0.0] * options.workers  # when each worker's last line was
        self._unprinted: dict[int, dict] = {}  # worker -> last event, if not printed yet
        self._window = getattr(options, "window", 1)
        whole = not options.batch_size and datasets.is_known(options)
        self._size = datasets.describe(options).size if whole else 0
        self._console = Console(highlight=False, soft_wrap=True)
        self._progress = Progress(
            TextColumn("global step {task.completed:>6.0f}/{task.total:.0f}"),
            BarColumn(),
            TextColumn("{task.fields[status]}"),
            console=self._console,
            disable=options.plain or not self._console.is_terminal,
            transient=True,
        )
        self._bar = self._progress.add_task(
            "", total=options.steps, status="starting: importing TensorFlow takes a few seconds"
        )
        self._say(f"{title}; logs and results in {results.shown(where)}")

    def __enter__(self) -> "Screen":
        self._progress.start()
        return self

    def __exit__(self, *exception) -> None:
        self._progress.stop()

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False)

    def say(self, text: str) -> None:
        """Prints a line above the progress line."""
        self._say(text)

    def update(self, last: bool = False) -> None:
        """Reads new events and prints some; with `last`, prints each worker's last step as well.

        Also prints what a task wants to show: the lines of its log that begin with `> `.
        """
        loss, total = None, self._options.steps
        for worker, tail in enumerate(self._tails):
            events = tail.read()
            if not events:
                continue
            event = events[-1]
            if self._from is None:
                self._from, self._began = events[0]["global_step"] - 1, trace.began(events[0])
            shards = sum(path.exists() for path in self._paths)  # servers have none
            batch = self._options.batch_size or len(range(worker, self._size, shards))
            self._examples += sum(e.get("examples", batch * self._window) for e in events)
            self._step, loss = max(self._step, event["global_step"]), event["loss"]
            total = event.get("total", total)  # if --steps is not the whole run's
            self._unprinted[worker] = event
        for worker, event in list(self._unprinted.items()):
            if event["time"] - self._printed[worker] >= 1 or last:
                self._printed[worker] = event["time"]
                del self._unprinted[worker]
                if text := self._about.line(worker, event):
                    self._say(text)
        for path in sorted(self._logs.glob("*.log")):
            tail = self._said.setdefault(path, results.Lines(path, self._sizes.get(path, 0)))
            for text in tail.read():
                if text.startswith("> "):
                    self._say(text[2:])
        if loss is not None:
            seconds = max(1e-3, time.time() - self._began)
            done = max(1, self._step - self._from)
            left = seconds * (total - self._step) / done
            rate = f"{self._examples / seconds:,.0f} examples/s"
            status = f"loss {loss:.3g}  {rate}  ETA {left:.0f} s"
            self._progress.update(self._bar, completed=self._step, total=total, status=status)


def table(summary: dict, where: Path, about: About) -> None:
    """Prints the table and the run's last lines."""
    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = 200  # a pipe has no width; do not cut lines
    columns = ["task", "batches", "examples/s", "computing", "communicating", "waiting", "exit"]
    drops = any("dropped" in task for task in summary["tasks"])
    if drops:
        columns.append("dropped")
    shown = Table(*columns, box=None, pad_edge=False)
    for column in shown.columns[1:]:
        column.justify = "right"
    for task in summary["tasks"]:
        name = f"{task['job']} {task['index']}"
        ended = "?" if task["exit_code"] is None else str(task["exit_code"])
        if task["restarts"]:
            ended += f" ({counted(task['restarts'], 'restart')})"
        if "computing" not in task:  # a server
            shown.add_row(name, "", "", "", "", "", ended)
            continue
        seconds = task["seconds"] or 1.0
        shares = [f"{task[k] / seconds:.0%}" for k in ("computing", "communicating", "waiting")]
        rate = f"{task['examples'] / seconds:,.0f}"
        row = [name, str(task["local_steps"]), rate, *shares, ended]
        if drops:
            row.append(str(task.get("dropped")))
        shown.add_row(*row)
    console.print(shown)
    stale = summary["staleness"]
    console.print(
        f"global step {summary['global_step']}: {summary['examples']:,} examples in "
        f"{summary['seconds']:.1f} s, "
        f"{summary['examples_per_second']:,.0f} examples/s; "
        f"staleness mean {stale['mean']:.2f}, max {stale['max']}"
    )
    if summary["bytes_per_step"]:
        use = summary["link_use"]
        link = f", {use:.0%} of {summary['flags']['link_mbit']:g} Mbit/s" if use else ""
        console.print(f"network: {summary['bytes_per_step']:,.0f} bytes per step{link}")
    last = [about.tested(summary), f"results in {results.shown(where)}"]
    console.print("; ".join(filter(None, last)), markup=False)
