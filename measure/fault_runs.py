"""The cells of the fault matrix: which ones exist, and how each is measured; for `faults.py`."""

import ast
import concurrent.futures
import functools
import hashlib
import json
import math
import random
import shlex
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

import disturbed
import fault_table
from disturbed import Run, missing_and_twice
from watch import ROOT

from common import flags as command_line
from common.launch import network
from common.record import results
from common.told import example as examples

TRAINS = 3.0  # seconds that an undisturbed run should train
LIMIT = 240.0  # --timeout of a run
TRIES = 4  # a run may have passed its moment before it is struck
# What an example needs in order to run anywhere, and for as long as needed.
NEEDS = {
    "CIFAR-10": "--data digits",  # else it downloads
    "Actor-Learner": "--target_return 1000",  # out of reach, so --steps ends the run
    "Train-and-Serve": "--patience 1000000",  # the same
    "One-Network-per-Device": "--rates 0.1,0.5 --widths 16,64",
}


class Cell(NamedTuple):
    """One run of the matrix."""

    example: str
    fault: str
    who: str  # ps, chief, worker, launcher, two of them, or link; "" for an undisturbed run
    moment: str

    def __str__(self) -> str:
        return " ".join(filter(None, [self.example, self.fault, self.who, self.moment]))


def with_needs(example: str) -> str:
    return " ".join(filter(None, [example, NEEDS.get(example.split()[0], "")]))


def tasks(example: str) -> dict[str, str]:
    """Role -> task, as the launcher would start them. A role that the example lacks is missing."""
    name, *arguments = shlex.split(with_needs(example))
    folder = ROOT / name
    defaults, _ = examples.example_of(examples.main_script(folder))
    options = command_line.parser(defaults, folder=folder).parse_args(arguments)
    script = examples.chosen_script(folder, options, defaults)
    command_line.complete(options, examples.same_defaults(defaults, script))
    count = {job: len(all_) for job, all_ in examples.scripts_of(folder, script, options).items()}
    roles = {"chief": "chief 0" if count["chief"] else "worker 0"}
    if count["ps"]:
        roles["ps"] = "ps 0"
    if (last := f"worker {count['worker'] - 1}") != roles["chief"]:
        roles["worker"] = last
    return roles | {"launcher": "launcher"}


def matrix(chosen: list[str], faults: list[str], moments: list[str]) -> list[Cell]:
    """All cells, except for roles that an example does not have; prints which those are."""
    cells, no_link = [], network.can_be_private() if "cut" in faults else ""
    if no_link:
        print(f"no cells with a cut link: there is no private network here ({no_link})")
    for example in chosen:
        there = tasks(example)
        names = {"ps": "no ps", "worker": "no other worker"}
        if lacks := [name for role, name in names.items() if role not in there]:
            print(f"{example} has {' and '.join(lacks)}")
        who = {fault: ["ps", "chief", "worker", "launcher"] for fault in ("kill", "term", "stop")}
        # All tasks are on one link. A run with one process sends nothing.
        who["cut"] = ["link"] * (len(there) > 2 and not no_link)
        who["two"] = ["ps and chief", "chief and worker"]
        cells += [
            Cell(example, fault, roles, moment)
            for fault in faults
            for roles in who[fault]
            if roles == "link" or set(roles.split(" and ")) <= there.keys()
            for moment in moments
        ]
    return cells


@functools.cache  # each cell asks
def state(example: str) -> str:
    """Identifies the code that a run executes, ignoring comments, docstrings and notebook code."""
    found = hashlib.sha1()
    folders = [ROOT / "common", ROOT / example.split()[0]]
    files = [p for folder in folders for kind in ("py", "sh") for p in folder.rglob(f"*.{kind}")]
    for path in sorted(p for p in files if not {"results", "teach"} & {*p.parts}):
        found.update(code(path.read_text()).encode() if path.suffix == ".py" else path.read_bytes())
    return found.hexdigest()[:12]


def code(text: str) -> str:
    """The code of a Python file, regardless of its comments, docstrings and layout."""
    tree, documented = ast.parse(text), (ast.Module, ast.ClassDef, ast.FunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, documented) and ast.get_docstring(node):
            node.body = node.body[1:]
    return ast.dump(tree)


class Matrix:
    """Measures cells, several at once if asked to, and records each in a file."""

    def __init__(self, path: Path, seed: int, keep: Path | None, steps: dict[str, int]):
        self.path, self._seed, self._keep, self._steps = path, seed, keep, steps
        self.found = {key(record): record for record in read(path)}
        self._lock, self._stopped = threading.Lock(), False

    def has(self, cell: Cell) -> bool:
        record = self.found.get(cell)
        return bool(record) and record["state"] == state(cell.example)

    def note(self, cell: Cell, record: dict) -> dict:
        record = cell._asdict() | {"state": state(cell.example)} | record
        record["date"] = time.strftime("%Y-%m-%d")
        with self._lock:
            if self._stopped:  # by Ctrl-C: a killed run proves nothing
                raise KeyboardInterrupt
            self.found[cell] = record
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        return record

    def measure(self, cells: list[Cell], jobs: int) -> None:
        """First the undisturbed runs that are missing, then these cells."""
        like = dict.fromkeys(Cell(cell.example, "none", "", "") for cell in cells)
        pool = concurrent.futures.ThreadPoolExecutor(jobs)
        try:
            list(pool.map(self._undisturbed, [cell for cell in like if not self.has(cell)]))
            for number, record in enumerate(pool.map(self._disturbed, cells), 1):
                cell = key(record)
                wrong = fault_table.wrong(record, self.found[like_of(cell)])
                verdict = "; ".join(wrong) or f"ok, {record['lost']:+.1f} s"
                print(f"{number}/{len(cells)}  {cell}: {verdict}", flush=True)
        except BaseException:
            with self._lock:
                self._stopped = True
            for run in list(disturbed.running):
                run.kill()
            raise
        finally:
            pool.shutdown(cancel_futures=True)

    def _start(self, cell: Cell, steps: int, where: Path) -> Run:
        if self._stopped:
            raise KeyboardInterrupt
        return Run(with_needs(cell.example), steps, where, LIMIT)

    def _undisturbed(self, cell: Cell) -> None:
        """Finds --steps that take about `TRAINS` seconds."""
        steps = self._steps.get(cell.example, 200)
        for attempt in range(4):
            with tempfile.TemporaryDirectory() as where:
                run = self._start(cell, steps, Path(where))
                run.all_started({*tasks(cell.example).values()})
                started = time.monotonic() - run.began
                run.wait_until(run.has_checkpoint)
                first = time.monotonic() - run.began
                record, trained = self._ended(run), run.summary().get("seconds", math.inf)
                if record["code"] and not self._stopped:
                    raise RuntimeError(f"{cell.example} fails undisturbed:\n{run.screen()}")
            numbers = record.pop("numbers")
            if cell.example in self._steps or 0.6 < trained / TRAINS < 1.8 or attempt == 3:
                break
            steps = max(10, int(float(f"{steps * min(10, TRAINS / trained):.2g}")))
        asked, lines = record["made"], numbers["events"].total()
        record |= {
            "steps": steps, "asked": asked, "lines": lines, "times": max(1, round(lines / asked)),
            "updates": bool(numbers["updates"]), "trained": round(trained, 2),
            "started": round(started, 2), "first": round(first, 2),
            # Whether the parameters are in the chief's memory, and not on a ps
            "chief_has_all": "ps" not in tasks(cell.example),
        }  # fmt: skip
        self.note(cell, record)
        print(f"{cell.example}: {asked} updates in {trained:.1f} s, {record['seconds']:.1f} s "
              "in all", flush=True)  # fmt: skip

    def _ended(self, run: Run) -> dict:
        code = run.end()
        record = {"code": code, "seconds": round(run.seconds, 1), **run.left()}
        summary, screen, numbers = run.summary(), run.screen(), run.numbers()
        last = [line for line in screen.splitlines() if line.strip()][-1:] if code else []
        return record | {
            "made": summary.get("global_step"),
            "restarts": sum(task["restarts"] for task in summary.get("tasks", [])),
            "traceback": "Traceback (most" in screen, "says": run.plain("".join(last)),
            "broken": sum(counter.pop(None, 0) for counter in numbers.values()),
            "numbers": numbers,
        }  # fmt: skip

    def _disturbed(self, cell: Cell) -> dict:
        like, there = self.found[like_of(cell)], tasks(cell.example)
        names = {there[role] for role in cell.who.split(" and ") if role in there}
        names = names or {there["chief"]}  # a task in the network with that link
        for attempt in range(TRIES):
            share = random.Random(f"{self._seed} {attempt} {cell}").random()
            with tempfile.TemporaryDirectory() as folder:
                where = Path(folder)
                run = self._start(cell, like["steps"], where)
                struck = (
                    run.all_started({*there.values()})
                    and run.wait_for(cell.moment, share, like)
                    and run.strike(cell.fault, names)
                )
                record = self._ended(run)
                if not struck and attempt < TRIES - 1:
                    continue
                record |= {"seed": self._seed, "share": round(share, 3), "struck": struck}
                record |= {"at": run.at, "lost": round(record["seconds"] - like["seconds"], 1)}
                for name, times in (("events", like["times"]), ("updates", int(like["updates"]))):
                    counts = missing_and_twice(record["numbers"][name], like["asked"], times)
                    record |= {f"{name}_missing": counts[0], f"{name}_twice": counts[1]}
                record.pop("numbers")
                record = self.note(cell, record)
                if self._keep and fault_table.wrong(record, like):
                    shutil.copytree(where, self._keep / str(cell).replace(" ", "_"), symlinks=True,
                                    dirs_exist_ok=True)  # fmt: skip
                return record

    def tidy(self) -> None:
        """Keeps only the newest line of each cell, in order."""
        order = sorted(self.found.values(), key=lambda record: json.dumps(key(record)))
        text = "".join(json.dumps(record) + "\n" for record in order)
        results.write(self.path, lambda file: file.write(text.encode()))


def like_of(cell: Cell) -> Cell:
    """The undisturbed run of the same example."""
    return Cell(cell.example, "none", "", "")


def key(record: dict) -> Cell:
    return Cell(*(record[name] for name in Cell._fields))


def read(path: Path) -> list[dict]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]
