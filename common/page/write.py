"""Writes the page of a run: one file, which needs no server and no network."""

import html
import json
import math
import re
from pathlib import Path

from common.record import results, trace
from common.record.words import counted

HERE = Path(__file__).parent
MODULES = ("lanes.js", "plots.js", "recorded.js", "run.js")
STEPS = 4000  # of each worker, at most; the page says if there were more


def write(folder: str | Path) -> Path:
    """Writes `run.html` into the results folder of a run, which may still train. Returns the file.
    Raises what `read` does."""
    file, text = Path(folder) / "run.html", page(read(folder))
    results.write(file, lambda out: out.write(text.encode()))
    return file


def read(folder: str | Path, stopped: bool = False) -> dict:
    """What the page needs of a run.

    Args:
        folder: its results: with `launches.jsonl`, and what the tasks have written so far.
        stopped: whether it is over even if it has no summary, as it was interrupted or killed.

    Raises:
        FileNotFoundError: if this is no results folder.
    """
    folder = Path(folder)
    launches = results.Tail(folder / "launches.jsonl").read()
    file = folder / "summary.json"
    # A run that goes on from a checkpoint has the summary of the part before. A simulated one has
    # no launches.
    over = file.exists() and (not launches or file.stat().st_mtime > launches[-1]["time"])
    summary = json.loads(file.read_text()) if over else None
    if not launches and not summary:
        raise FileNotFoundError(f"{folder}: no launches.jsonl, so this is no run's results folder")
    return recorded(folder, summary or launches[-1], over, stopped)


def page(run: dict) -> str:
    """The HTML, from what `read` has found."""
    text = (HERE / "run.html").read_text()
    parts = {"/* run */ null": json.dumps(run).replace("</", "<\\/"),
             "/* style.css */": (HERE / "style.css").read_text(),
             "/* modules */": "\n".join(map(_plain, MODULES))}  # fmt: skip
    for place, part in parts.items():
        text = text.replace(place, part)
    return text


def framed(run: dict) -> str:
    """The page, in a frame.

    Args:
        run: what `read` has found.
    """
    return (
        f'<iframe class="moving" style="width: 100%; height: 36rem; border: 0" '
        f'title="{html.escape(run["title"])}: what happened, as lanes that move" '
        f'srcdoc="{html.escape(page(run))}"></iframe>'
    )


def _plain(name: str) -> str:
    """A module without its imports and exports: all of them stand in one script."""
    text = (HERE / name).read_text()
    return re.sub(r"^export ", "", re.sub(r"^import .*\n", "", text, flags=re.M), flags=re.M)


def recorded(folder: Path, about: dict, over: bool, stopped: bool) -> dict:
    """What the page needs of a run; times are seconds since the first step began.

    Args:
        folder: its results.
        about: its summary, if it is over; else its launch.
        over: whether it is.
        stopped: whether it will go no further in any case.
    """
    flags = about["flags"]
    events = trace.read_events(folder, flags["workers"])
    start = min((trace.began(mine[0]) for mine in events if mine), default=0.0)
    kept = [mine[:STEPS] for mine in events]
    end = min((mine[-1]["time"] for mine, all_ in zip(kept, events) if len(mine) < len(all_)),
              default=math.inf)  # fmt: skip
    cut = any(len(mine) < len(all_) for mine, all_ in zip(kept, events))
    updates = [each for each in trace.read_updates(folder, events) if each["time"] <= end]
    return {
        "title": f"{about['scheme']}, {counted(flags['workers'], 'worker')}",
        "about": _about(about if over else None, updates if stopped else None, cut),
        "running": not over and not stopped,
        "flags": {"window": flags.get("window", 1)},
        "steps": [[_step(each, start) for each in mine] for mine in kept],
        "updates": [[round(each["time"] - start, 4), each["number"], each["workers"]]
                    for each in updates],
        "evaluations": [[round(each["time"] - start, 4), each["global_step"], each["test_loss"]]
                        for each in trace.read_evaluations(folder) if "test_loss" in each],
    }  # fmt: skip


def _step(event: dict, start: float) -> list:
    counted = event.get("counted")
    times = [trace.began(event) - start, event["pull"], event["compute"], event["push"],
             None if counted is None else counted - start]  # fmt: skip
    loss = event["loss"] if math.isfinite(event["loss"]) else None
    return [*(None if each is None else round(each, 5) for each in times), event["global_step"],
            event.get("pulled_at"), event["staleness"], loss and float(f"{loss:.4g}"),
            event["local_step"]]  # fmt: skip


def _about(summary: dict | None, made: list[dict] | None, cut: bool) -> str:
    some = f" The first {STEPS:,} steps of each worker are shown." if cut else ""
    if summary is None and made is not None:
        last = max((each["number"] for each in made), default=0)
        return f"The run was stopped after update {last:,}.{some}"
    if summary is None:
        return f"The run is not over yet; this page reloads every five seconds.{some}"
    said = f"{summary['global_step']:,} updates in {summary['seconds']:.1f} s"
    if summary.get("test_accuracy") is not None:
        said += f", test accuracy {summary['test_accuracy']:.1%}"
    return f"{said}.{some}"
