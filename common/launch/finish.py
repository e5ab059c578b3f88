"""Ends a run: `summary.json` and `curves.png`, from what its tasks wrote, and the table."""

import json
import os
from pathlib import Path

from common.record import results
from common.record.summary import summarise


def write(where: Path, scheme: str, flags: dict, tasks: list[dict]) -> None:
    """Writes `summary.json` and `curves.png` into the folder, and prints the table.

    Args:
        where: a results folder that holds the files of all tasks.
        scheme, flags, tasks: as for `summarise`.
    """
    from common.launch import screen  # imported late, since it loads slowly

    found = summarise(where, scheme, flags, tasks)
    if "NO_CURVES" not in os.environ:  # a notebook shows pictures of its own
        from common.pictures import plots

        plots.curves(where, found)
    text = json.dumps(found, indent=2) + "\n"
    results.write(where / "summary.json", lambda file: file.write(text.encode()))
    screen.table(found, where)
