"""What papers say of their schemes, and what simulated runs of the same kind show.

    bash measure/start.sh published [NAME...]   half an hour in all

An experiment compares sides: schemes, windows, numbers of workers. Each side has its own rate: the
best one of a grid with a step of 2, which the search follows until the best rate has one on both
sides (`scoreboard.search`). It begins with the scheme's default, or, if the loss is compared, with
the best of rates that are a factor of 8 apart. The worst of three seeds decides, since a rate that
fails now and then is none to choose. Then the side runs with five other seeds. What it costs is the
test loss in the last tenth of the run, or the simulated seconds until the loss is the experiment's
`target`, as in `scoreboard.py`. Nothing that looks at the loss uses the link.

The problem: an mlp with 64 hidden units, or a linear model, learns MNIST-1D, whose 10,000 test
examples tell losses apart.

`published.json` keeps the results; what it has is not repeated.
"""

import dataclasses
import functools
import math
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor

import grid
import simulate
from cluster import Cluster
from kept import read, write
from schemes import SCHEMES
from scoreboard import MIDDLE, RATES, mean_loss, nearest, search
from watch import ROOT

FOUND = ROOT / "measure" / "published.json"
TUNING_SEEDS, SEEDS = (10, 11, 12), (0, 1, 2, 3, 4)
WORK = {"data": "mnist1d", "model": "mlp", "hidden": 64, "batch_size": 16}
CLASSES, LOOKS = 10, 100  # LOOKS: at the loss, at most


@dataclasses.dataclass(frozen=True)
class Experiment:
    """Sides that are compared.

    Attributes:
        sides: name -> flags.
        batches: of all workers together; what a run does if it does not reach the target.
        target: the test loss that ends a run; None: all its batches are used.
        same: a rate that all sides run with, too, as in the papers that have one for all.
    """

    sides: dict[str, dict]
    batches: int
    target: float | None = None
    same: float | None = None


def windows() -> dict[str, dict]:
    """Hermans et al. 2017: 20 workers, over windows."""
    kinds = {
        "plain sum": {"scheme": "Plain-DOWNPOUR"},
        "sum, Adagrad": {"scheme": "DOWNPOUR-Easy"},
        "AGN": {"scheme": "AGN"},
        "elastic, alpha = 0.5": {"scheme": "AEASGD", "moving_rate": 0.5},
        "elastic, alpha = 0.9 / n": {"scheme": "AEASGD"},
    }
    return {f"{kind}, T = {T}": {**flags, "workers": 20, "window": T, "latency": 0.02}
            for kind, flags in kinds.items() for T in (1, 5, 10, 20, 50)}  # fmt: skip


def elastic() -> dict[str, dict]:
    """Zhang, Choromanska and LeCun 2015: 4 workers, over windows."""
    kinds = {"DOWNPOUR": "Plain-DOWNPOUR", "EASGD": "AEASGD", "EAMSGD": "AEAMSGD"}
    return {f"{kind}, T = {T}": {"scheme": scheme, "workers": 4, "window": T}
            for kind, scheme in kinds.items() for T in (1, 4, 16, 64)}  # fmt: skip


def compensated() -> dict[str, dict]:
    """Zheng et al. 2017: one worker, and 4 or more with each way to treat staleness."""
    found = {"SGD, n = 1": {"scheme": "HogWild", "workers": 1}}
    for n in (4, 8, 20):
        found |= {f"{name}, n = {n}": {"workers": n, **flags} for name, flags in {
            "ASGD": {"scheme": "HogWild"},
            "SSGD": {"scheme": "Synchronous-SGD"},
            **{f"DC-ASGD-c, lambda = {strength:g}": {"scheme": "DC-ASGD", "dc_lambda": strength}
               for strength in (0.04, 0.4, 4)},
            **{f"DC-ASGD-a, lambda = {strength:g}": {"scheme": "DC-ASGD", "dc_lambda": strength,
                                                     "adaptive": True}
               for strength in (0.2, 1, 5)},
        }.items()}  # fmt: skip
    return found


def local() -> dict[str, dict]:
    """Stich 2019: a convex problem, where a round's four messages take as long as 25 gradients."""
    return {f"H = {H}, K = {K}": {"scheme": "Local-SGD", "window": H, "workers": K,
                                  "model": "linear", "latency": 25 * 0.01 / 4}
            for H in (1, 4, 16, 64, 256) for K in (1, 2, 4, 8, 16)}  # fmt: skip


def belief() -> dict[str, dict]:
    """Dean et al. 2012: the time to a loss, by workers, with a fixed rate and with Adagrad."""
    kinds = {"fixed rate": {"scheme": "Plain-DOWNPOUR", "window": 1},
             "Adagrad": {"scheme": "DOWNPOUR-Easy", "window": 1}}  # fmt: skip
    return {f"{kind}, n = {n}": {**flags, "workers": n}
            for kind, flags in kinds.items() for n in (1, 5, 20, 50)}  # fmt: skip


def backups() -> dict[str, dict]:
    """Chen et al. 2016: 100 workers, of which b are backups; some mini-batches take long. One
    example each, so that every gradient counts."""
    return {f"b = {b}": {"scheme": "Synchronous-SGD", "workers": 100, "backup_workers": b,
                         "spread": 0.3, "batch_size": 1}
            for b in (0, 2, 4, 6, 10, 20, 40, 60)}  # fmt: skip


def modulated() -> dict[str, dict]:
    """Zhang et al. 2016: 30 workers; the rate divided by the staleness."""
    return {f"{name}, n = {n}": {"scheme": scheme, "workers": n}
            for name, scheme in (("eta", "HogWild"), ("eta / s", "Staleness-Aware"))
            for n in (4, 30)}  # fmt: skip


def rescued() -> dict[str, dict]:
    """Hermans et al. 2017: 20 workers; a push divided by its staleness + 1."""
    return {f"{name}, T = {T}": {"scheme": scheme, "workers": 20, "window": T}
            for name, scheme in (("sum", "Plain-DOWNPOUR"), ("sum / (s + 1)", "Dynamic-SGD"))
            for T in (1, 10)}  # fmt: skip


def forty() -> dict[str, dict]:
    """Hermans et al. 2017: 40 workers; who wins depends on the window."""
    return {f"{scheme}, T = {T}": {"scheme": scheme, "workers": 40, "window": T}
            for scheme in ("AGN", "AEASGD") for T in (10, 20)}  # fmt: skip


EXPERIMENTS = {
    "belief": Experiment(belief(), 20_000, target=1.0),
    "elastic": Experiment(elastic(), 20_000),
    "compensated": Experiment(compensated(), 10_000, same=0.4),
    "backups": Experiment(backups(), 60_000, target=1.2),
    "local": Experiment(local(), 100_000, target=1.7),
    "modulated": Experiment(modulated(), 10_000, same=0.4),
    "rescued": Experiment(rescued(), 20_000, same=0.4),
    "forty": Experiment(forty(), 200_000),
    "windows": Experiment(windows(), 20_000, same=0.05),
}


class Watched(Cluster):
    """A simulated cluster that evaluates w~ where it is.

    Attributes:
        losses: the time and the test loss of each look.
        reached: when the target was reached; infinite if it never was.
    """

    def __init__(self, *args, every: int, target: float | None):
        super().__init__(*args)
        self.every, self.target = every, target
        self.losses, self.reached = [], math.inf

    def update(self, w, workers) -> None:
        super().update(w, workers)
        if self.updates % self.every or self.finished.triggered:
            return
        self.losses.append((self.env.now, self.journal.problem.evaluate(w)["test_loss"]))
        if not math.isfinite(self.losses[-1][1]):
            self.finished.succeed()
        elif self.target is not None and mean_loss(self.losses) <= self.target:
            self.reached = MIDDLE * self.env.now
            self.finished.succeed()

    def confirm(self, k, told):
        """No worker evaluates."""
        yield self.wait(told)


def cost(flags: dict, batches: int, target: float | None) -> float:
    """Seconds to the target, or the mean loss in the last tenth; infinite if there is none, or if
    guessing is better. At the top level, since other processes of `grid` call it."""
    window = flags.get("window", 1)
    together = flags["workers"] if SCHEMES[flags["scheme"]].worker == "synchronous" else 1
    steps = max(1, batches // (window * together))
    every = max(1, steps // (LOOKS if target is None else 10 * LOOKS))
    options = simulate.options(**WORK | flags, steps=steps + 1)
    make = functools.partial(Watched, every=every, target=target)
    cluster, _ = simulate.simulate(options, make_cluster=make)
    if target is not None:
        return cluster.reached
    last = [loss for _, loss in cluster.losses[-max(1, len(cluster.losses) // 10) :]]
    found = statistics.mean(last)
    return found if found < math.log(CLASSES) else math.inf


def measured(side: dict, experiment: Experiment, pool) -> dict:
    """The grid of one side, and its values with the best rate, and with the same for all. Without
    a rate if none learns."""

    def values(rate: float, seeds) -> list[float]:
        jobs = [pool.submit(cost, {**side, "learning_rate": rate, "seed": seed},
                            experiment.batches, experiment.target) for seed in seeds]  # fmt: skip
        return [job.result() for job in jobs]

    same = {}
    if experiment.same is not None:
        same["same"] = rounded(values(experiment.same, SEEDS))

    @functools.cache
    def worst(k: int) -> float:
        return max(values(RATES[k], TUNING_SEEDS))

    begin = nearest(side["scheme"])
    if experiment.target is None:
        begin = min([begin, *range(0, len(RATES), 3)], key=worst)
        if math.isinf(worst(begin)):
            return {"rate": None, "grid": [], "values": [None] * len(SEEDS)} | same
    tried = search(begin, worst)
    rate = RATES[min(tried, key=tried.__getitem__)]
    found = {"rate": rate, "grid": [[RATES[k], rounded([tried[k]])[0]] for k in sorted(tried)],
             "values": rounded(values(rate, SEEDS))}  # fmt: skip
    return found | same


def rounded(found: list[float]) -> list[float | None]:
    return [round(value, 4) if math.isfinite(value) else None for value in found]


def main() -> None:
    names = sys.argv[1:] or list(EXPERIMENTS)
    if set(names) - set(EXPERIMENTS):
        sys.exit(__doc__)
    kept, pool = read(FOUND), grid.processes()
    with ThreadPoolExecutor(4) as threads:  # so that each process always has a run to make
        for name in names:
            experiment, found = EXPERIMENTS[name], kept.setdefault(name, {})
            left = {side: flags for side, flags in experiment.sides.items() if side not in found}
            jobs = {side: threads.submit(measured, flags, experiment, pool)
                    for side, flags in left.items()}  # fmt: skip
            for side, job in jobs.items():
                found[side] = job.result()
                print(name, side, found[side]["rate"], found[side]["values"], sep=": ", flush=True)
                write(FOUND, kept, indent=1)


if __name__ == "__main__":
    main()
