"""The trials of a search: the settings of each, from the command line."""

import argparse
import itertools

import numpy as np

from common import fail


def settings(flags, worker: int) -> list[argparse.Namespace]:
    """The flags of each trial: those of the run, with the trial's own rate, width and seed.

    Within the same ranges, a random trial depends only on `--seed` and its number: the first ten
    of twenty are the same as in a search with ten, whatever the number of workers.

    Args:
        flags: the parsed command line.
        worker: this worker's index, for `--delay`.

    Raises:
        SystemExit: with a one-line error, if a value is bad.
    """
    check(flags)
    widths = flags.widths if flags.model == "mlp" else [None]  # other models have no hidden layer
    pairs = list(itertools.product(flags.rates, widths))
    if flags.search == "random":
        drawn = range(flags.trials or len(pairs))
        pairs = [draw(np.random.default_rng([flags.seed, t]), flags.rates, widths) for t in drawn]
    delay = {0: flags.delay[worker]} if worker in (flags.delay or {}) else None
    return [
        argparse.Namespace(**vars(flags) | {"learning_rate": rate, "hidden": width, "delay": delay,
                                            "seed": flags.seed + 1000 * t})
        for t, (rate, width) in enumerate(pairs)
    ]  # fmt: skip


def draw(random: np.random.Generator, rates: list, widths: list) -> tuple[float, int | None]:
    """A rate and a width between the smallest and the largest, uniform in the logarithm: 0.01 to
    0.1 is as likely as 0.1 to 1."""
    rate = np.exp(random.uniform(np.log(min(rates)), np.log(max(rates))))
    if widths == [None]:
        return float(f"{rate:.3g}"), None
    width = np.exp(random.uniform(np.log(min(widths)), np.log(max(widths))))
    return float(f"{rate:.3g}"), round(width)


def check(flags) -> None:
    """Exits with a one-line error if a flag does not fit a search."""
    for name in ("rates", "widths"):
        for value in getattr(flags, name):
            if value <= 0:
                fail(f"--{name}: each must be above 0, not {value:g}")
    if flags.search == "grid" and flags.trials:
        fail(f"--trials {flags.trials}: a grid has a trial for each pair of --rates and --widths; "
             "leave it out, or add --search random")  # fmt: skip
    if flags.trials < 0:
        fail(f"--trials {flags.trials}: must be at least 1, or 0 for as many as the grid has")
    if flags.target_accuracy:
        fail("--target_accuracy: leave it out, since the test set is used only once, at the end")
    if flags.steps_per_execution > 1:
        fail("--steps_per_execution: leave it out, since nothing is sent between steps here")
    if flags.ps > 1:
        fail(f"--ps {flags.ps}: must be 1, since one ps keeps the whole search")
