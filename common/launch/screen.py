"""What a run shows: a progress line, one line per worker and second, and a final table."""

import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from common import datasets
from common.launch import gpus, record
from common.training import results


class Screen:
    """Follows the events files while the tasks write them."""

    def __init__(self, where: Path, options):
        self._options = options
        self._tails = [record.Tail(results.events_file(where, k)) for k in range(options.workers)]
        self._step, self._examples, self._began = 0, 0, 0.0
        self._from = None
        self._printed = [0.0] * options.workers
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
        what = "thread" if getattr(options, "threads", None) else "worker"
        what = "tower" if getattr(options, "mode", "") == "towers" else what
        tasks = f"{options.workers} {what}{'s'[: options.workers > 1]}, {options.ps} ps"
        if hasattr(options, "mode") and not gpus.count():
            tasks += " (no GPU found: on the CPU)"
        self._say(f"{tasks}; logs and results in {record.shown(where)}")

    def __enter__(self) -> "Screen":
        self._progress.start()
        return self

    def __exit__(self, *exception) -> None:
        self._progress.stop()

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False)

    def say(self, text: str) -> None:
        """A line above the progress line."""
        self._say(text)

    def update(self, last: bool = False) -> None:
        """Reads new events; `last`: prints every worker's last step, however recent."""
        loss = None
        for worker, tail in enumerate(self._tails):
            events = tail.read()
            if not events:
                continue
            event = events[-1]
            if self._from is None:
                self._from, self._began = events[0]["global_step"] - 1, record.began(events[0])
            batch = self._options.batch_size or len(range(worker, self._size, len(self._tails)))
            self._examples += batch * self._window * len(events)
            self._step, loss = max(self._step, event["global_step"]), event["loss"]
            if event["time"] - self._printed[worker] >= 1 or last:
                self._printed[worker] = event["time"]
                self._say(
                    results.line(worker, event["global_step"], event["loss"], event["staleness"])
                )
        if loss is not None:
            seconds = max(1e-3, time.time() - self._began)
            done = max(1, self._step - self._from)
            left = seconds * (self._options.steps - self._step) / done
            rate = f"{self._examples / seconds:,.0f} examples/s"
            status = f"loss {loss:.3g}  {rate}  ETA {left:.0f} s"
            self._progress.update(self._bar, completed=self._step, status=status)


def table(summary: dict, where: Path) -> None:
    """The run's last lines."""
    console = Console(highlight=False, soft_wrap=True)
    columns = ["task", "batches", "examples/s", "computing", "communicating", "waiting", "exit"]
    drops = any("dropped" in task for task in summary["tasks"])
    shown = Table(*columns, *["dropped"] * drops, box=None, pad_edge=False)
    for column in shown.columns[1:]:
        column.justify = "right"
    for task in summary["tasks"]:
        name = f"{task['job']} {task['index']}"
        ended = str(task["exit_code"])
        if task["restarts"]:
            ended += f" ({task['restarts']} restart{'s'[: task['restarts'] > 1]})"
        if task["job"] == "ps":
            shown.add_row(name, "", "", "", "", "", ended)
            continue
        seconds = task["seconds"] or 1.0
        shares = [f"{task[k] / seconds:.0%}" for k in ("computing", "communicating", "waiting")]
        rate = f"{task['examples'] / seconds:,.0f}"
        dropped = [str(task.get("dropped"))] * drops
        shown.add_row(name, str(task["local_steps"]), rate, *shares, ended, *dropped)
    console.print(shown)
    stale = summary["staleness"]
    console.print(
        f"global step {summary['global_step']}: {summary['examples']:,} examples in "
        f"{summary['seconds']:.1f} s, "
        f"{summary['examples_per_second']:,.0f} examples/s; "
        f"staleness mean {stale['mean']:.2f}, max {stale['max']}"
    )
    last = f"test accuracy {summary['test_accuracy']:.2%}; results in {record.shown(where)}"
    console.print(last, markup=False)
