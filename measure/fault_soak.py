"""Many short runs, and long ones: nothing may be left behind, no update missing or made twice, and
no task's memory may grow."""

import concurrent.futures
import statistics
import tempfile
import time
from pathlib import Path

import psutil
from disturbed import Run, missing_and_twice
from fault_runs import Cell

from common.record.words import ABORTED, counted

EXAMPLE, SHORT = "HogWild", 50  # --steps of a short run
LONG = ("HogWild", "Synchronous-SGD")  # asynchronous and synchronous
WORKERS = 2
EVERY = 5.0  # seconds between two looks at a long run
SLOWEST = 20  # updates per second, at least
GROWS = 1.05  # the memory of a task in its last minute, as a multiple of its second one
AND = 10.0  # MB that may be added to that


def measure(found, runs: int, steps: int, jobs: int) -> None:
    """Adds a record to a `Matrix` for the short runs, if any, and one for each long run."""
    if runs:
        found.note(Cell(EXAMPLE, "soak", "runs", ""), short_runs(runs, jobs))
    for example in LONG:
        found.note(Cell(example, "soak", "long", ""), long_run(example, steps))


def short_runs(runs: int, jobs: int) -> dict:
    """One after the other, or several at once: what they leave behind."""

    def one(number: int) -> tuple[float, list[str]]:
        with tempfile.TemporaryDirectory() as where:
            run = Run(EXAMPLE, SHORT, Path(where), 120)
            code = run.end()
            left = {what: each for what, each in run.left().items() if each}
            wrong = [f"run {number} left {each[0]}" for each in left.values()]
            if code or run.summary().get("global_step") != SHORT:
                wrong.append(f"run {number} ended with {code}: {run.screen().splitlines()[-1:]}")
        print(f"{number} of {runs}: {'; '.join(wrong) or 'ok'}, {run.seconds:.1f} s", flush=True)
        return run.seconds, wrong

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        done = list(pool.map(one, range(1, runs + 1)))
    seconds, wrong = [took for took, _ in done], [word for _, words in done for word in words]
    first, last = (statistics.median(part) for part in (seconds[:20], seconds[-20:]))
    text = f"{runs} runs of {EXAMPLE} with {SHORT} steps: {len(wrong)} faults. "
    text += f"The first 20 took {first:.1f} s each (median), the last 20 {last:.1f} s. "
    text += "What else ran on the machine meanwhile was not recorded, so this difference proves "
    text += "nothing."
    page = ["## Many runs", "", text, ""]
    return {"runs": runs, "seconds": sum(seconds), "wrong": wrong, "page": page}


def long_run(example: str, steps: int) -> dict:
    """What its events say in the end; how much memory its tasks use, and how large the events
    become, every few seconds.

    About once in 40,000 to 90,000 calls, TensorFlow aborts one by mistake: a long run meets that.
    """
    samples = []
    with tempfile.TemporaryDirectory() as where:
        run = Run(example, steps, Path(where), steps / SLOWEST)
        due = time.monotonic()
        while run.goes_on():
            if time.monotonic() > due:
                samples.append(look(run))
                due += EVERY
            time.sleep(0.1)
        code = run.end()
        left = [word for each in run.left().values() for word in each]
        made, numbers = run.summary().get("global_step"), run.numbers()
        logs = [path.read_text() for path in (run.results / "logs").glob("*.log")]
    aborts = sum(log.count(ABORTED) for log in logs)
    wrong = [f"the long run left {word}" for word in left]
    if code or made != steps:
        wrong.append(f"the long run ended with {code} after {made} of {steps} updates")
    # In a synchronous scheme each worker takes part in each round, unless its call was aborted.
    rounds = numbers["updates"].total() > 0
    once, events = numbers["updates" if rounds else "events"], numbers["events"]
    missing, twice = missing_and_twice(once, steps, 1)
    if missing or twice:
        wrong.append(f"the long run's files miss {missing} updates, and have {twice} twice")
    if rounds and events.total() < WORKERS * steps - aborts:
        wrong.append(f"the long run has {events.total()} events for {steps} rounds")
    rows, grown = memory(samples)
    text = (
        f"{example} for {run.seconds / 60:.1f} minutes, {made:,} updates: none missing, none made "
    )
    text += f"twice. TensorFlow aborted {counted(aborts, 'call')} by mistake. The events grew to "
    text += f"{samples[-1]['events'] / 1e6:.0f} MB, a line for each step. Memory (RSS) of each "
    text += "task, in MB. Once training has ended, the workers sum up their events, and the "
    text += "launcher draws the curves."
    head = "| | second minute | last minute | peak in training | peak after it |"
    page = [f"## A long run of {example}", "", text, "", head, "|---|---|---|---|---|", *rows, ""]
    wrong += grown
    return {"steps": steps, "aborts": aborts, "samples": samples, "wrong": wrong, "page": page}


def look(run: Run) -> dict:
    """Time, MB of each task, bytes of the events."""
    rss = {}
    for name, pid in run.pids().items():
        try:
            rss[name] = round(psutil.Process(pid).memory_info().rss / 1e6, 1)
        except psutil.Error:  # it has just ended
            continue
    sizes = {p: p.stat().st_size for p in run.results.rglob("*.jsonl")}
    events = sum(size for path, size in sizes.items() if path.name.startswith("events"))
    return {"time": round(time.monotonic() - run.began, 1), "rss": rss, "events": events}


def memory(samples: list[dict]) -> tuple[list[str], list[str]]:
    """Rows of the table, and which tasks have grown. The first minute is start-up."""
    training = [sample for sample in samples if any("ps" in name for name in sample["rss"])]
    end = training[-1]["time"]
    rows, grown = [], []
    for name in sorted({name for sample in training for name in sample["rss"]}):
        each = [(s["time"], s["rss"][name]) for s in training if name in s["rss"]]
        second = [mb for at, mb in each if 60 <= at < 120] or [mb for _, mb in each]
        last = [mb for at, mb in each if at > end - 60]
        before, after = statistics.mean(second), statistics.mean(last)
        ending = [s["rss"][name] for s in samples if s["time"] > end and name in s["rss"]]
        peaks = f"{max(mb for _, mb in each):,.0f} | {f'{max(ending):,.0f}' if ending else ''}"
        rows.append(f"| {name} | {before:,.0f} | {after:,.0f} | {peaks} |")
        if after > GROWS * before + AND:
            grown.append(f"{name} grew from {before:.0f} to {after:.0f} MB")
    return rows, grown
