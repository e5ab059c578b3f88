"""Runs an example to its end, as a reader would, and gives what it has written."""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from watch import ROOT

from common.record import trace


class Failed(SystemExit):
    """The run's exit code was not 0: the command, and what was on the screen. An instrument that
    does not catch it ends with that text."""


@dataclass(frozen=True)
class Finished:
    """A run that has ended: its `summary.json`, the events of each worker, the trials if there are
    any, and what was on the screen."""

    summary: dict
    events: list[list[dict]]
    trials: list[dict]
    screen: str


def run(example: str, *flags) -> Finished:
    """`bash EXAMPLE/run.sh` with these flags and no picture; its results folder is deleted.

    Raises:
        Failed: Its exit code was not 0.
    """
    with tempfile.TemporaryDirectory() as where:
        command = ["bash", f"{ROOT}/{example}/run.sh", "--plain", "--results", where]
        command += map(str, flags)
        env = os.environ | {"PYTHON": sys.executable, "NO_CURVES": "1"}
        done = subprocess.run(
            command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        if done.returncode:
            raise Failed(f"{' '.join(command)} failed:\n{done.stdout}")
        summary = json.loads(Path(where, "summary.json").read_text())
        events = trace.read_events(where, summary.get("workers", 0))
        trials = Path(where, "trials.jsonl")
        rows = trials.read_text().splitlines() if trials.exists() else []
        return Finished(summary, events, [json.loads(row) for row in rows], done.stdout)
