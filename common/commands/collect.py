"""Merges the files of a run's tasks: makes `summary.json`, `curves.png` and a table.

    python -m common.commands.collect FOLDER [FOLDER ...]

Name the `--results` folders of all tasks of one run, whether they ran on one machine or several;
if they shared a folder, name that one. The command copies the other tasks' events and parts into
the chief's folder (worker 0's if there is no chief), and writes the results there.
"""

import argparse
import json
import shutil
from pathlib import Path

from common import fail
from common.launch import finish
from common.record import results, trace
from common.told import converters
from common.told.parser import Parser

ROOT = Path(__file__).resolve().parents[2]
JOBS = ("ps", "worker", "chief")
# Flags that may differ between the tasks of a run.
OWN = ("results", "checkpoint_dir", "plain", "open", "data", "data_url", "timeout",
       "max_restarts")  # fmt: skip


def read_parts(folders: list[Path]) -> dict[tuple[str, int], tuple[Path, dict]]:
    """Returns each task's folder and part, by job and index.

    Raises:
        SystemExit: with a one-line error, if a folder holds no part, or the runs differ.
    """
    parts: dict[tuple[str, int], tuple[Path, dict]] = {}
    for folder in dict.fromkeys(folders):
        paths = sorted(folder.glob("task-*.json"))
        if not paths:
            fail(
                f"{folder} holds no part of a run (task-JOB-INDEX.json): name the results folders "
                "of tasks that you started by hand"
            )
        for path in paths:
            try:
                part = json.loads(path.read_text())
                who = part["job"], part["index"]
                whose = part["scheme"], part["hosts"], _common(part), part["started"], part["ended"]
            except (OSError, ValueError, KeyError, TypeError) as error:
                fail(f"{path} is not a valid task file ({error!r}): leave its folder out")
            if who in parts and parts[who][1] != part:
                fail(
                    f"{parts[who][0]} and {folder} both hold the part of {who[0]} {who[1]}: name "
                    "the folders of only one run"
                )
            for other_folder, other in parts.values():
                *same, started, ended = whose
                together = (other["ended"] or started) >= started
                together &= (ended or other["started"]) >= other["started"]
                if same != [other["scheme"], other["hosts"], _common(other)] or not together:
                    fail(
                        f"{other_folder} and {folder} hold parts of different runs: name the "
                        "folders of only one run"
                    )
            parts.setdefault(who, (folder, part))
    return parts


def _common(part: dict) -> dict:
    return {name: value for name, value in part["flags"].items() if name not in OWN}


def main() -> None:
    """Runs the command; exits with a one-line error and code 2 on a bad argument or file."""
    parser = Parser(
        prog="python -m common.commands.collect",
        description=__doc__,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    text = "a task's --results"
    parser.add_argument("folders", nargs="+", metavar="FOLDER", type=converters.path, help=text)
    folders = [Path(folder) for folder in parser.parse_args().folders]
    if len(folders) == 1 and not list(folders[0].glob("task-*.json")):
        where, (scheme, *run) = folders[0], _by_launcher(folders[0])
    else:
        where, (scheme, *run) = _by_hand(read_parts(folders))
    if not trace.read_evaluations(where):
        fail(f"{where} has no evaluation yet: wait until its task has written one")
    finish.write(where, ROOT / Path(scheme).name, *run)


def _by_launcher(folder: Path) -> tuple[str, dict, list[dict]]:
    """Returns the scheme, flags and tasks of a run that `run.sh` started. If it was stopped before
    it wrote its summary, nobody knows how the tasks ended."""
    summary = folder / "summary.json"
    try:
        launch = results.Tail(folder / "launches.jsonl").read()[-1]
        if summary.exists() and summary.stat().st_mtime > launch["time"]:
            made = json.loads(summary.read_text())
            return made["scheme"], made["flags"], made["tasks"]
        names = {path.stem for path in folder.glob("logs/*.log")}
        names |= {path.stem.removeprefix("events-") for path in folder.glob("events-*.jsonl")}
        tasks = [
            {"job": job, "index": k, "exit_code": None, "restarts": 0, "restart_reasons": []}
            for job in JOBS
            for k in range(len(names))
            if f"{job}-{k}" in names
        ]
        return launch["scheme"], launch["flags"], tasks
    except (OSError, ValueError, LookupError, TypeError):
        fail(
            f"{folder} holds no part of a run (task-JOB-INDEX.json, or the launches.jsonl of "
            "run.sh): name the results folders of a run"
        )


def _by_hand(parts: dict) -> tuple[Path, tuple[str, dict, list[dict]]]:
    """Copies all files to the chief's folder; returns it, and the scheme, flags and tasks."""
    hosts = next(part["hosts"] for _, part in parts.values())
    client = "chief" if "chief" in hosts else "worker"  # trains, so it has results
    for k in range(len(hosts.get(client, [0]))):
        if (client, k) not in parts:
            fail(f"the part of {client} {k} is missing: name its results folder too")
    where, chief = parts[client, 0]
    if not (where / "parameters.npz").exists():
        fail(f"{where} has no parameters.npz, since {client} 0 has not finished: let it finish")
    for (job, k), (folder, _) in parts.items():
        for name in (f"task-{job}-{k}.json", f"events-worker-{k}.jsonl"):
            if folder != where and (folder / name).exists():
                shutil.copy2(folder / name, where / name)
    everyone = [(job, k) for job in JOBS for k in range(len(hosts.get(job, [])))]
    # Without hosts, one process runs all workers.
    everyone = everyone or [("worker", k) for k in range(chief["flags"]["workers"])]
    tasks = []
    for job, k in everyone:
        _, part = parts.get((job, k) if hosts else ("worker", 0), (None, {"exit_code": None}))
        reasons = part.get("restart_reasons", [])
        tasks.append({"job": job, "index": k, "exit_code": part["exit_code"],
                      "restarts": len(reasons), "restart_reasons": reasons})  # fmt: skip
    return where, (chief["scheme"], chief["flags"], tasks)


if __name__ == "__main__":
    main()
