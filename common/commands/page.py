"""Shows a run in the browser: `python -m common.commands.page RESULTS` writes RESULTS/run.html, one
file that needs no server, and opens it. The run may be over, or still train.
"""

import argparse
from pathlib import Path

from common import fail
from common.page import shown, write
from common.record import results


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m common.commands.page", description=__doc__.split(": ")[0] + ".",
        allow_abbrev=False,
    )  # fmt: skip
    parser.add_argument("results", type=Path, help="the results folder of a run")
    parser.add_argument("--plain", action="store_true", help="only write it")
    options = parser.parse_args()
    try:
        page = write.write(options.results)
    except FileNotFoundError as missing:
        fail(str(missing))
    print(f"open {results.shown(page)}", flush=True)
    if not options.plain:
        shown.show(page)


if __name__ == "__main__":
    main()
