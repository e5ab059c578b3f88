"""Many workers on a laptop: any scheme and any number of workers, in virtual time.

One process computes the real gradients of all workers. The clock and the network are simulated: how
long computing and transfers take, and who waits. So the same flags give the same result (unless
`--compute 0` measures this machine).
"""

import argparse
import math
import shutil
import signal
import sys
import time
from pathlib import Path

import numpy as np
import workers
from cluster import Cluster
from journal import LOGGED, Journal
from learning import Nothing, Problem
from report import Report
from schemes import SCHEMES

from common import datasets, fail, flags
from common.flags import Flag
from common.page.shown import Shown
from common.record import results
from common.told import converters as to
from common.told import mistakes
from common.told.parser import Parser

ZERO_UP = to.number(float, "0 or more", lambda value: value >= 0)
# The collection's flags, without those that only real processes need.
NEEDLESS = ("checkpoint_dir", "max_restarts", "timeout", "network", "steps_per_execution")
FLAGS = {name: flag for name, flag in flags.EVERYWHERE.items() if name not in NEEDLESS} | {
    "workers": Flag(to.COUNT, 20, "N", "simulated workers"),
    "ps": Flag(to.COUNT, 1, "N", "simulated parameter servers"),
    "scheme": Flag(to.choice(tuple(SCHEMES)), "AGN", "NAME",
                   f"the scheme: {', '.join(SCHEMES)}"),
    "model": Flag(to.choice(("linear", "mlp", "none")), "mlp", "NAME",
                  "the network: linear, mlp; none: no gradients, only times"),
    "hidden": Flag(to.COUNT, 64, "H", "width of the mlp's hidden layer"),
    "delay": Flag(to.delays, None, "K:SECONDS", "worker K's batches come SECONDS late"),
    "compute": Flag(ZERO_UP, 0.01, "SECONDS", "mean time of a mini-batch; 0: measured here"),
    "spread": Flag(ZERO_UP, 0.1, "SHARE", "its standard deviation, as a share of the mean"),
    "latency": Flag(ZERO_UP, 0.0005, "SECONDS", "time that a message takes on an empty link"),
    "link_mbit": Flag(to.POSITIVE, None, "M", "speed of each parameter server's link in Mbit/s"),
    "worker_mbit": Flag(to.POSITIVE, None, "M", "speed of each worker's link in Mbit/s"),
    "duplex": Flag(bool, False, "", "a parameter server sends and receives at the same time"),
    "update": Flag(ZERO_UP, 0.0, "SECONDS", "time that an update takes; all --ps share it"),
    "request": Flag(ZERO_UP, 0.0, "SECONDS", "time that the ps need for each pull and each push"),
    "parameters": Flag(to.WHOLE, 0, "N", "parameters per transfer; 0: as the network has"),
}  # fmt: skip


def parser(scheme: str) -> Parser:
    """The command line of a scheme, which adds flags of its own."""
    text = f"{__doc__}\nbash Many-Workers/run.sh [flags]"
    folder = Path(__file__).parents[1] / scheme  # what it says of its own flags counts here, too
    return flags.parser(SCHEMES[scheme].defaults, text, folder, FLAGS)


def parsed(arguments: list[str]):
    """The complete command line.

    Raises:
        SystemExit: with a one-line error, if a flag is wrong.
    """
    scheme = FLAGS["scheme"].default
    for word, following in zip(arguments, [*arguments[1:], ""]):
        if word.startswith("--scheme"):
            scheme = word.partition("=")[2] or following
    scheme = scheme if scheme in SCHEMES else FLAGS["scheme"].default
    own, known = SCHEMES[scheme].defaults, parser(scheme)
    options = known.parse_args(arguments)
    flags.complete(options, own)
    mistakes.check(options, own, known)
    if options.model != "none":
        size = datasets.describe(options).size
        if options.workers > size:
            fail(f"--workers {options.workers}: the training set has only {size} examples; "
                 "--model none needs no data")  # fmt: skip
    elif not options.batch_size:
        known.error("--batch_size 0: --model none has no data; give a batch size")
    elif not options.compute:
        known.error("--compute 0: --model none has no gradient to measure; give a time")
    return options


def options(**flags):
    """The complete command line with these flags: `options(scheme="AGN", workers=100)`. None: the
    default. A flag with several values takes a list, `delay` a dictionary.

    Raises:
        SystemExit: as `parsed`.
    """
    words = []
    for name, value in flags.items():
        if isinstance(value, dict):
            value = [f"{key}:{each}" for key, each in value.items()]
        if isinstance(value, list | tuple):
            value = ",".join(map(str, value))
        if value is None:
            continue
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no-{name}")
        else:
            words += [f"--{name}", str(value)]
    return parsed(words)


def simulate(
    options, problem=None, make_cluster=Cluster, report=None, curve: bool = True
) -> tuple[Cluster, Journal]:
    """Simulates a run to its end.

    Args:
        options: the complete command line, from `parsed` or `options`.
        problem: what is learned (default: what `options` say); see `learning.py`.
        make_cluster: called with the arguments of `Cluster`.
        report: of `report.py`; without one, nothing is written or shown.
        curve: as in `Journal`.

    Returns:
        The cluster, with the final parameters `w`, and the journal, with all measurements.
    """
    if not options.compute:
        options = argparse.Namespace(**vars(options) | {"compute": measured(options)})
    problem = problem or (Nothing if options.model == "none" else Problem)(options)
    w = problem.initial()
    scheme = SCHEMES[options.scheme](options, problem.gradient, w)
    write, show = (report.write, report.show) if report else (ignore, ignore)
    journal = Journal(options, problem, scheme.worker == "synchronous", write, show, curve)
    cluster = make_cluster(options, scheme, w, options.parameters or problem.size, journal)
    with np.errstate(all="ignore"):  # a diverging run overflows
        cluster.run(getattr(workers, scheme.worker))
        if problem.size:
            journal.evaluate(cluster.w, cluster.updates, journal.time, journal.time, last=True)
    return cluster, journal


def run(**flags) -> tuple[Cluster, Journal]:
    """Simulates a run with these flags: `run(scheme="AGN", workers=100)`."""
    return simulate(options(**flags))


def ignore(*_) -> None:
    """Discards its arguments."""


def measured(options) -> float:
    """Seconds for a gradient on this machine: the median of 50."""
    problem, took = Problem(options), []
    w = problem.initial()
    for _ in range(50):
        began = time.perf_counter()
        problem.gradient(0, w)
        took.append(time.perf_counter() - began)
    return float(np.median(took))


def main(arguments: list[str]) -> None:
    """Runs the command. Exits with a one-line error and code 2, if it cannot be done."""
    options = parsed(arguments)
    options.results = options.results or str(Path(__file__).with_name("results") / results.now())
    where, began = Path(options.results), time.monotonic()
    if there := sorted(path.name for path in where.glob("*")):
        fail(f"--results {where} already holds {there[0]}: use another folder")
    if options.model != "none" and options.data in datasets.known.DOWNLOADED:
        datasets.reader(options.data).fetch(options)
    results.create(where)
    print(f"{options.workers} workers, {options.ps} ps, simulated in one process; "
          f"results in {results.shown(where)}", flush=True)  # fmt: skip
    with Report(options, where) as report:
        cluster, journal = simulate(options, report=report)
    if not math.isfinite(journal.evaluations[-1]["test_loss"] if journal.evaluations else 0.0):
        for path in where.iterdir():  # it was empty
            path.unlink()
        for folder in results.made:
            shutil.rmtree(folder)
        fail("the loss on the test set is NaN or infinite: try a --learning_rate below "
             f"{options.learning_rate:g}; the more asynchronous workers (here "
             f"{options.workers}), the smaller it must be")  # fmt: skip
    report.finish(cluster, journal)
    Shown(where, options.open).write(print)
    some = options.workers > LOGGED
    print(f"({LOGGED} of {options.workers:,} workers shown; " if some else "(", end="")
    print(f"all times are simulated; the simulation took {time.monotonic() - began:.1f} s)")


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    main(sys.argv[1:])
