"""Which scheme reaches a loss first: by link, and by number of workers?

    bash measure/start.sh scoreboard tune [SCHEME...]    the rate of each scheme at each setting:
                                                         simulated, in about an hour

The problem: an mlp with 128 hidden units, 6,538 parameters, learns MNIST-1D until its loss on the
10,000 test examples is `TARGET`. A mini-batch has 8 examples, since a worker that adds examples to
a large batch saves no updates, whatever the link is. It takes 50 ms (`--compute_ms`), so that eight
workers on two cores do not compete for them. One process needs about 1,400 mini-batches.

Each scheme has its own rate for each link and number of workers: the best one of a grid with a step
of 2 (`RATES`, the same for all), which the search follows until the best rate has one on both
sides. Everything else has its default, but windows: T = 10 for all.

Tuning uses the simulation of Many-Workers, and seeds that the comparison does not use. It ends a
run when the target is reached, and looks at the parameters on the simulated ps, which costs the
link nothing.

`scoreboard.json` keeps everything; a run that it has is not repeated.
"""

import functools
import math
import statistics
import sys

import grid
import simulate
from cluster import Cluster
from kept import read, write
from schemes import SCHEMES
from watch import ROOT

FOUND = ROOT / "measure" / "scoreboard.json"
WORKERS, LINKS = (1, 2, 4, 8), (10, 100, 1000)  # Mbit/s
TARGET, LONGEST = 1.2, 400  # the test loss; simulated seconds until a run is given up
TUNING_SEEDS = (10, 11, 12)
WORK = {"data": "mnist1d", "model": "mlp", "hidden": 128, "batch_size": 8}
MS, WINDOW = 50, 10
RATES = [0.1 * 2.0**k for k in range(-12, 10)]
LOOKS = 0.02  # of the time since the start: how far apart two looks at the loss are
MEAN = 0.05  # of the time since the start: over how much of it the mean loss must be low


class Watched(Cluster):
    """A simulated cluster that evaluates w~ where it is, so that no worker and no link is used, and
    ends once the loss is reached.

    Attributes:
        losses: the time and the test loss of each look.
        reached: when the target was reached; infinite if it never was.
    """

    def __init__(self, *args):
        super().__init__(*args)
        self.losses, self.reached, self._next = [], math.inf, 0.5

    def update(self, w, workers) -> None:
        super().update(w, workers)
        now = self.env.now
        if now < self._next or self.finished.triggered:
            return
        self._next = now * (1 + LOOKS)
        self.losses.append((now, self.journal.problem.evaluate(w)["test_loss"]))
        if not math.isfinite(self.losses[-1][1]) or now > LONGEST:
            self.finished.succeed()
        elif mean_loss(self.losses) <= TARGET:
            self.reached = now
            self.finished.succeed()

    def confirm(self, k, told):
        """No worker evaluates."""
        yield self.wait(told)


def mean_loss(losses: list[tuple[float, float]]) -> float:
    """Of the looks in the last `MEAN` of the time: one look alone is too noisy."""
    return statistics.mean(loss for at, loss in losses if at >= losses[-1][0] * (1 - MEAN))


def seconds_to_target(flags: dict) -> float:
    """Simulated seconds until a run with these flags reaches the target; infinite if it does not.

    At the top level, since other processes of `grid` call it.
    """
    options = simulate.options(**flags)
    cluster, _ = simulate.simulate(options, make_cluster=Watched)
    return cluster.reached


def flags_of(scheme: str, workers: int, mbit: float, rate: float, seed: int) -> dict:
    """The command line of a simulated run."""
    window = {"window": WINDOW} if "window" in SCHEMES[scheme].defaults else {}
    return {"scheme": scheme, "workers": workers, "link_mbit": mbit, "learning_rate": rate,
            "seed": seed, "steps": 10**9, "compute": MS / 1000, "spread": 0.01,
            **WORK, **window}  # fmt: skip


def search(begin: int, cost) -> dict[int, float]:
    """Tries rates, by their index in `RATES`, until the best has one on both sides.

    Args:
        begin: where the search begins.
        cost: of a rate's index; infinite if it does not learn.

    Raises:
        SystemExit: if the best rate is at an end of `RATES`, or none learns.
    """
    found: dict[int, float] = {}
    wanted = [begin - 1, begin, begin + 1]
    while wanted:
        for k in wanted:
            if not 0 <= k < len(RATES):
                sys.exit("the best rate is at an end of RATES: add more")
            found[k] = cost(k)
        if all(map(math.isinf, found.values())):  # too high: a low rate learns in the end
            wanted = [min(found) - 1]
            continue
        best = min(found, key=found.__getitem__)
        wanted = [k for k in (best - 1, best + 1) if k not in found]
    return found


def tune(kept: dict, schemes: list[str]) -> None:
    """The median time to the target of three seeds, for each rate."""
    tuned = kept.setdefault("tuned", {})
    pool = grid.processes()
    for scheme in schemes:
        begin = min(range(len(RATES)), key=functools.partial(off, SCHEMES[scheme].defaults))
        for mbit in reversed(LINKS):
            for workers in WORKERS:
                name = f"{scheme}, {workers} workers, {mbit} Mbit/s"
                if name in tuned:
                    continue

                def cost(k, scheme=scheme, workers=workers, mbit=mbit):
                    runs = [flags_of(scheme, workers, mbit, RATES[k], seed)
                            for seed in TUNING_SEEDS]  # fmt: skip
                    return statistics.median(pool.map(seconds_to_target, runs))

                found = search(begin, cost)
                begin = min(found, key=found.__getitem__)  # the next setting's is near
                tuned[name] = [[RATES[k], None if math.isinf(found[k]) else round(found[k], 3)]
                               for k in sorted(found)]  # fmt: skip
                print(f"{name}: {RATES[begin]:g}, {found[begin]:.1f} s", flush=True)
                write(FOUND, kept, indent=1)


def off(defaults: dict, k: int) -> float:
    """How far a rate is from a scheme's default."""
    return abs(math.log(RATES[k] / defaults["learning_rate"]))


def main() -> None:
    kinds = {"tune": tune}
    what, *names = sys.argv[1:] or [""]
    if what not in kinds or set(names) - set(SCHEMES):
        sys.exit(__doc__)
    kinds[what](read(FOUND), names or list(SCHEMES))


if __name__ == "__main__":
    main()
