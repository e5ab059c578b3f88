"""What becomes of a run when a task is killed or stopped, or the cable is pulled: every example,
every task, three moments.

    bash measure/start.sh faults                         # all that faults.jsonl does not have yet
    bash measure/start.sh faults --examples HogWild,AGN --faults kill,cut --moments middle --again
    bash measure/start.sh faults --examples 'TensorFlow-2 --strategy multi_worker_mirrored'
    bash measure/start.sh faults --soak                  # hundreds of runs, and two long ones
    bash measure/start.sh faults --table                 # only writes the table, faults.md

It is a benchmark, not a test: the whole matrix takes hours. Each cell becomes a line in
`faults.jsonl` as soon as it is measured, so Ctrl-C loses only the runs in progress. `--quick` is
what a test runs.

The faults: `kill` (SIGKILL), `term` (SIGTERM), `stop` (SIGSTOP, and SIGCONT after 20 s), `cut` (the
link of the run's private network loses everything for 5 s), `two` (SIGKILL for two tasks at once).
The moments: `start` (before the first checkpoint), `middle`, `end` (in the last 0.2 s before the
last update). The exact time is drawn at random, seeded with `--seed` and the name of the cell.
"""

import argparse
import signal
import sys
import tempfile
from pathlib import Path

import fault_soak
import fault_table
from fault_runs import Matrix, matrix

from common.record import results

HERE = Path(__file__).resolve().parent
FOUND, TABLE = HERE / "faults.jsonl", HERE / "faults.md"
MOMENTS, FAULTS = ("start", "middle", "end"), ("kill", "term", "stop", "cut", "two")
QUICK = {"HogWild": 3000}  # --steps


def everything() -> list[str]:
    """Every example with processes of its own."""
    scripts = HERE.parent.glob("*/run.sh")
    others = ("tests", "Many-Workers", "Several-Machines")
    return sorted(path.parent.name for path in scripts if path.parent.name not in others)


def parser() -> argparse.ArgumentParser:
    def words(known):
        def convert(text: str) -> list[str]:
            chosen = text.split(",")
            for word in chosen:
                if not word or word.split()[0] not in known:
                    raise argparse.ArgumentTypeError(f"{word!r} is not one of {', '.join(known)}")
            return chosen

        return convert

    every = everything()
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--examples", type=words(every), default=every, metavar="A,B")
    p.add_argument("--faults", type=words(FAULTS), default=[*FAULTS], metavar="A,B")
    p.add_argument("--moments", type=words(MOMENTS), default=[*MOMENTS], metavar="A,B")
    p.add_argument("--jobs", type=int, default=1, metavar="N", help="runs side by side (default 1)")
    p.add_argument("--seed", type=int, default=0, metavar="S", help="of the exact times")
    p.add_argument("--again", action="store_true", help="measure also what is already there")
    p.add_argument("--keep", type=Path, metavar="DIR", help="copies the folders of bad cells there")
    p.add_argument("--into", type=Path, metavar="FILE", help="default: faults.jsonl")
    p.add_argument("--quick", action="store_true", help="one example, SIGKILL for each task")
    p.add_argument("--table", action="store_true", help="measures nothing, only writes faults.md")
    p.add_argument("--soak", action="store_true", help="many short runs, and long ones")
    p.add_argument("--runs", type=int, default=200, metavar="N",
                   help="short runs of --soak (default 200; 0: only the long ones)")  # fmt: skip
    p.add_argument("--steps", type=int, default=200_000, metavar="N",
                   help="of each long one (default 200000)")  # fmt: skip
    return p


def main() -> int:
    options = parser().parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C
    with tempfile.TemporaryDirectory() as folder:
        options.into = options.into or (Path(folder, "quick") if options.quick else FOUND)
        return measure(options)


def measure(options) -> int:
    """Measures what the command line asks for, shows it, and returns 1 if anything is wrong."""
    found = Matrix(options.into, options.seed, options.keep, QUICK if options.quick else {})
    try:
        if options.soak:
            fault_soak.measure(found, options.runs, options.steps, options.jobs)
        elif not options.table:
            if options.quick:
                options.examples, options.faults, options.moments = [*QUICK], ["kill"], ["middle"]
            cells = matrix(options.examples, options.faults, options.moments)
            if options.quick:
                cells = [cell for cell in cells if cell.who != "launcher"]
            left = [cell for cell in cells if options.again or not found.has(cell)]
            print(f"{len(cells)} cells, {len(cells) - len(left)} already measured", flush=True)
            found.measure(left, options.jobs)
    except KeyboardInterrupt:
        print("\nstopped: what is measured is kept; the same command continues", flush=True)
        return 130
    finally:
        found.tidy()
    text = fault_table.text([*found.found.values()])
    print(text)
    if options.into == FOUND:
        results.write(TABLE, lambda file: file.write(text.encode()))
    return int(bool(fault_table.all_wrong([*found.found.values()])))


if __name__ == "__main__":
    sys.exit(main())
