"""`python -m common.commands.collect` on the folder of a finished run, for tests that have one."""

import json
import subprocess
import sys

from conftest import ROOT, Finished, environment
from machine import seconds


def collect(*folders) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "common.commands.collect", *map(str, folders)]
    return subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True,
                          timeout=seconds(60))  # fmt: skip


def assert_the_same(finished: Finished) -> None:
    """Rebuilding a run's results gives the same table and summary. It draws the curves, too."""
    text = (finished.results / "summary.json").read_text()
    done = collect(finished.results)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads((finished.results / "summary.json").read_text()) == json.loads(text)
    assert (finished.results / "curves.png").is_file()
    at = finished.output.index("task ")
    table = done.stdout.partition("; results in")[0]
    assert finished.output[at:].startswith(table)
