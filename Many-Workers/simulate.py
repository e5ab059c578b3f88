"""Many workers on a laptop: any scheme, any number of workers, any network, in virtual time.

One process computes the real gradients of all workers. Only the clock is simulated: how long
computing and transfers take, and who waits. So the same flags always give the same result.
"""

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
from schemes import SCHEMES, SynchronousSGD

from common import datasets, fail, flags
from common.flags import Flag
from common.launch import converters as to
from common.launch import mistakes, record
from common.training import results

ZERO_UP = to.number(float, "0 or more", lambda value: value >= 0)
# The collection's flags, without those that only real processes need.
NEEDLESS = ("checkpoint_dir", "max_restarts", "timeout", "network", "steps_per_execution")
FLAGS = {name: flag for name, flag in flags.EVERYWHERE.items() if name not in NEEDLESS} | {
    "workers": Flag(to.COUNT, 20, "N", "simulated workers"),
    "ps": Flag(to.COUNT, 1, "N", "simulated parameter servers"),
    "scheme": Flag(to.choice(tuple(SCHEMES)), "AGN", "NAME", ", ".join(SCHEMES)),
    "model": Flag(to.choice(("linear", "mlp", "none")), "mlp", "NAME",
                  "the network: linear, mlp; none: no gradients, only times"),
    "hidden": Flag(to.COUNT, 64, "H", "width of the mlp's hidden layer"),
    "delay": Flag(to.delays, None, "K:SECONDS", "worker K sleeps for SECONDS in every mini-batch"),
    "compute": Flag(ZERO_UP, 0.01, "SECONDS", "time per mini-batch; 0: measured here"),
    "spread": Flag(ZERO_UP, 0.1, "SHARE", "standard deviation of that time, as a share of it"),
    "latency": Flag(ZERO_UP, 0.0005, "SECONDS", "time that a message takes on an empty link"),
    "link_mbit": Flag(to.POSITIVE, None, "M", "speed of each parameter server's link in Mbit/s"),
    "worker_mbit": Flag(to.POSITIVE, None, "M", "speed of each worker's link in Mbit/s"),
    "duplex": Flag(bool, False, "", "a parameter server sends and receives at the same time"),
    "update": Flag(ZERO_UP, 0.0, "SECONDS", "time that a parameter server needs for a push"),
    "parameters": Flag(to.WHOLE, 0, "N", "numbers in a transfer; 0: the network's parameters"),
}  # fmt: skip


def parser(scheme: str) -> flags.Parser:
    """The command line of a scheme, which adds flags of its own."""
    text = f"{__doc__}\nbash Many-Workers/run.sh [flags]"
    return flags.parser(SCHEMES[scheme].defaults, text, known=FLAGS)


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
    return options


def options(**flags):
    """The complete command line with these flags: `options(scheme="AGN", workers=100)`."""
    words = []
    for name, value in flags.items():
        words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return parsed(words)


def simulate(options, problem=None, kind=Cluster, report=None) -> tuple[Cluster, Journal]:
    """Simulates a run to its end.

    Args:
        options: the complete command line, from `parsed` or `options`.
        problem: what is learned (default: what `options` say); see `learning.py`.
        kind: makes the cluster from the arguments of `Cluster`.
        report: of `report.py`; without one, nothing is written or shown.

    Returns:
        The cluster, with the final parameters `w`, and the journal, with all measurements.
    """
    problem = problem or (Nothing if options.model == "none" else Problem)(options)
    w = problem.initial()
    options.compute = options.compute or measured(problem, w)
    scheme = SCHEMES[options.scheme](options, problem.gradient, w)
    write, show = (report.write, report.show) if report else (ignore, ignore)
    journal = Journal(options, problem, isinstance(scheme, SynchronousSGD), write, show)
    cluster = kind(options, scheme, w, options.parameters or problem.size, journal)
    with np.errstate(all="ignore"):  # a diverging run overflows
        cluster.run(workers.of(scheme))
    if problem.size:
        journal.evaluate(cluster.w, cluster.updates, journal.time, journal.time)
    return cluster, journal


def ignore(*_) -> None:
    """Takes a message, and does nothing."""


def measured(problem, w) -> float:
    """Seconds for a gradient on this machine: the median of 50."""
    took = []
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
    if options.model != "none" and options.data in flags.DOWNLOADED:
        datasets.reader(options.data).fetch(options)
    results.create(where)
    print(f"{options.workers} workers, {options.ps} ps, simulated in one process; "
          f"results in {record.shown(where)}", flush=True)  # fmt: skip
    with Report(options, where) as report:
        cluster, journal = simulate(options, report=report)
    if not math.isfinite(journal.evaluations[-1]["test_loss"] if journal.evaluations else 0.0):
        for path in where.iterdir():  # it was empty
            path.unlink()
        for folder in results.made:
            shutil.rmtree(folder)
        fail("the loss on the test set is NaN or infinite: try a smaller --learning_rate than "
             f"{options.learning_rate:g} (the more workers, here {options.workers}, the smaller "
             "it must be)")  # fmt: skip
    report.finish(cluster, journal)
    more = options.workers - LOGGED
    print(f"(the first {LOGGED} workers; {more:,} more; " if more > 0 else "(", end="")
    print(f"all times are simulated: it took {time.monotonic() - began:.1f} s)")


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    main(sys.argv[1:])
