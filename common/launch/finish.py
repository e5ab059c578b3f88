"""Ends a run: `summary.json` and `curves.png`, from what its tasks wrote, and the table."""

import json
import os
from pathlib import Path

from common.record import results
from common.record.summary import summarise
from common.told import about


def write(where: Path, example: Path, flags: dict, tasks: list[dict]) -> None:
    """Writes `summary.json` and `curves.png` into the folder, and prints the table.

    Args:
        where: a results folder that holds the files of all tasks.
        example: the example's folder.
        flags, tasks: as for `summarise`.
    """
    from common.launch import screen  # late: rich takes long; the launcher starts its tasks first

    found = summarise(where, example.name, flags, tasks)
    if "NO_CURVES" not in os.environ:  # a notebook shows pictures of its own
        from common.pictures import curves  # late: Matplotlib takes half a second

        curves.draw(where, found, example)
    text = json.dumps(found, indent=2) + "\n"
    results.write(where / "summary.json", lambda file: file.write(text.encode()))
    screen.table(found, where, about.read(example))
