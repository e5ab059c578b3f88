"""Which scheme reaches a loss first: by link, and by number of workers?

    bash measure/start.sh scoreboard tune [SCHEME...]   the rate of each scheme at each setting:
                                                        simulated, in about an hour
    bash measure/start.sh scoreboard late [SCHEME...]   8 workers, one three times as slow:
                                                        simulated, in some minutes
    bash measure/start.sh scoreboard run [SCHEME...]    real runs, 5 seeds: six hours
    bash measure/start.sh scoreboard quick [SCHEME...]  two workers, a higher loss; keeps nothing

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

Real runs use every example's `run.sh`, each with a link of its own, so several run at a time:
`PROCESSES` processes at most. To start them takes most of the computing. So they start with the
lowest priority, and get the usual one as soon as their run begins, which only root may give them.
`snapshots.py` writes down what the ps holds, without the link; the looks are as far apart as in the
simulation. A run's time begins when all its workers do; `Goal` says when it ends. The runs take
turns by seed, so that a slow hour of the machine does not hit one scheme alone.

`scoreboard.json` keeps the tuning, `scoreboard.jsonl` a line for each run; what they have is not
repeated. A line says what simulating the run needs, too: how long a mini-batch took, and when the
workers began.
"""

import collections
import contextlib
import dataclasses
import itertools
import json
import math
import os
import statistics
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grid
import numpy as np
import simulate
from cluster import Cluster
from kept import read, write
from schemes import SCHEMES
from speeds import measured
from watch import ROOT
from watched_run import Run

FOUND = ROOT / "measure" / "scoreboard.json"
RUNS = ROOT / "measure" / "scoreboard.jsonl"
FOLDERS = [scheme for scheme in SCHEMES if (ROOT / scheme / "worker.py").exists()]
ALONE = "One process"  # its mini-batches follow each other, with no ps and no link
WORKERS, LINKS = (1, 2, 4, 8), (10, 100, 1000)  # Mbit/s
TARGET, LONGEST = 1.2, 400  # the test loss; simulated seconds until a run is given up
TUNING_SEEDS = (10, 11, 12)
WORK = {"data": "mnist1d", "model": "mlp", "hidden": 128, "batch_size": 8}
PARAMETERS = 40 * 128 + 128 + 128 * 10 + 10
MS, WINDOW = 50, 10
# Of a message, and of the cores for a pull or a push: what `linked.py` found, rounded.
TIMES = {"latency": 0.001, "request": 0.0008}
RATES = [0.1 * 2.0**k for k in range(-12, 10)]
LOOKS = 0.02  # of the time since the start: how far apart two looks at the loss are
MEAN = 0.2  # of the time since the start: over how much of it the mean loss must be low
MIDDLE = 1 - MEAN / 2  # of the time: then is the middle of such a window
SEEDS = (0, 1, 2, 3, 4)
# Workers, Mbit/s, and seconds that worker 7 sleeps in each mini-batch, which takes thrice as long.
LATE = 8, 100, {7: 2 * MS / 1000}
CONTROL = "Plain-DOWNPOUR"  # of Dynamic-SGD, which divides its sum; only simulated
PROCESSES = 24  # at a time, of all runs together
POINTS = 30  # of a run's curve


@dataclasses.dataclass(frozen=True)
class Goal:
    """When a real run ends: when it has done all three, or after `longest` seconds."""

    target: float = TARGET
    seconds: float = 20  # what is compared when each has used as much
    megabytes: float = 10  # of the runs with eight workers
    longest: float = LONGEST


QUICK = Goal(target=2.0, seconds=2, megabytes=1, longest=60)


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
            self.reached = MIDDLE * now
            self.finished.succeed()

    def confirm(self, k, told):
        """No worker evaluates."""
        yield self.wait(told)


def mean_loss(losses: list[tuple[float, float]]) -> float:
    """Of the looks in the last `MEAN` of the time: one look alone is too noisy, and with a noisy
    loss, the first low value of many comes early by chance. It is the loss in the window's middle.
    """
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
            **TIMES, **WORK, **window}  # fmt: skip


def search(begin: int, cost) -> dict[int, float]:
    """Tries rates, by their index in `RATES`, until the best has one on both sides; if several are
    equally good, each of them.

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
        best = [k for k in found if found[k] == min(found.values())]
        wanted = sorted({k + by for k in best for by in (-1, 1)} - set(found))
    return found


def tune(kept: dict, schemes: list[str]) -> None:
    """The median time to the target of three seeds, for each rate."""
    tuned = kept.setdefault("tuned", {})
    pool = grid.processes()
    for scheme in schemes:
        begin = nearest(scheme)
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
                tuned[name] = costs(found)
                print(f"{name}: {RATES[begin]:g}, {found[begin]:.1f} s", flush=True)
                write(FOUND, kept, indent=1)


def costs(found: dict[int, float]) -> list[list[float]]:
    """What `search` found as pairs of a rate and its cost; None if it does not learn."""
    return [[RATES[k], None if math.isinf(found[k]) else round(found[k], 3)]
            for k in sorted(found)]  # fmt: skip


def late(kept: dict, schemes: list[str]) -> None:
    """Simulated seconds to the target if one worker is late, each scheme at its own rate."""
    done, pool = kept.setdefault("late", {}), grid.processes()
    workers, mbit, delay = LATE

    def seconds(scheme: str, rate: float, seeds, delay: dict | None = delay) -> list[float]:
        runs = [flags_of(scheme, workers, mbit, rate, seed) | {"delay": delay} for seed in seeds]
        return list(pool.map(seconds_to_target, runs))

    def shown(took: list[float]) -> list[float | None]:
        return [round(each, 3) if math.isfinite(each) else None for each in took]

    for scheme in schemes:
        if scheme in done:
            continue
        known = scheme != CONTROL  # the rate for equal workers, which is near
        begin = RATES.index(best_rate(kept, scheme, workers, mbit)) if known else nearest(scheme)
        found = search(
            begin,
            lambda k, scheme=scheme: statistics.median(seconds(scheme, RATES[k], TUNING_SEEDS)),
        )
        took = seconds(scheme, RATES[min(found, key=found.__getitem__)], SEEDS)
        done[scheme] = {"rates": costs(found), "seconds": shown(took)}
        if known:
            done[scheme]["equal"] = shown(seconds(scheme, RATES[begin], SEEDS, None))
        print(scheme, done[scheme], flush=True)
        write(FOUND, kept, indent=1)


def nearest(scheme: str) -> int:
    """The index of the rate that is nearest to the scheme's default."""
    default = SCHEMES[scheme].defaults["learning_rate"]
    return min(range(len(RATES)), key=lambda k: abs(math.log(RATES[k] / default)))


def best_rate(kept: dict, scheme: str, workers: int, mbit: float) -> float:
    """One process has the rate of HogWild with one worker: it makes the same updates."""
    name = f"{'HogWild' if scheme == ALONE else scheme}, {workers} workers, {mbit} Mbit/s"
    if name not in kept.get("tuned", {}):
        sys.exit(f"no rate is known for {name}: first run `scoreboard tune`")
    return min((cost, rate) for rate, cost in kept["tuned"][name] if cost is not None)[1]


def settings(schemes: list[str]) -> list[tuple[str, int, int]]:
    """Scheme, workers and link of all runs of a seed; one process has no link."""
    found = [(ALONE, 1, max(LINKS))] if ALONE in schemes else []
    return found + [
        (scheme, workers, mbit)
        for mbit, workers, scheme in itertools.product(reversed(LINKS), WORKERS, schemes)
        if scheme != ALONE
    ]


def real_run(
    scheme: str,
    workers: int,
    mbit: float,
    rate: float,
    seed: int,
    goal: Goal,
    stop: threading.Event,
    more: dict,
) -> dict:
    """A real run: its line in `RUNS`.

    Args:
        stop: set to end it early.
        more: other flags; None: not this one.
    """
    flags = flags_of(scheme if scheme != ALONE else "HogWild", workers, mbit, rate, seed)
    # Its own evaluations would use the link, and time of worker 0, for which others wait.
    flags |= {"compute_ms": MS, "steps": 10**6, "timeout": 10 * LONGEST, "evaluate_every": 10**6}
    alone = ("link_mbit", "workers") if scheme == ALONE else ()
    for name in ("scheme", "compute", "spread", *TIMES, *alone):
        del flags[name]
    words = [word for name, value in (flags | more).items() if value is not None
             for word in (f"--{name}", value)]  # fmt: skip
    folder = "Non-Distributed-Setup" if scheme == ALONE else scheme
    with Run(folder, *words, every=0.1, share=LOOKS, examples=10_000, together=True) as run:
        looks: dict[int, tuple[float, float]] = {}
        while not run.over() and not stop.is_set():
            time.sleep(0.5)  # only to look again
            for k, at in run.snapshots().items():
                looks.setdefault(k, (at, run.loss(k)[1]))
            if looks and is_enough(list(looks.values()), run, goal):
                break
        points = [[at, run.loss(k)[0], mb, loss] for (k, (at, loss)), mb in
                  zip(looks.items(), run.megabytes([at for at, _ in looks.values()]))]  # fmt: skip
        what = {"scheme": scheme, "workers": workers, "mbit": mbit, "seed": seed, "rate": rate,
                "diverged": run.diverged(), **results(points, goal)}  # fmt: skip
        if what["diverged"] or stop.is_set():  # perhaps before anything could be measured
            return what
        if scheme != ALONE:
            what["cluster"] = measured(run.events(), scheme, flags.get("window", 1))
        return what | {"step": statistics.mean(run.step())}


def is_enough(looks: list[tuple[float, float]], run: Run, goal: Goal) -> bool:
    seconds = looks[-1][0]
    (sent,) = run.megabytes([seconds])
    if seconds > goal.longest or not math.isfinite(looks[-1][1]):
        return True
    if MIDDLE * seconds < goal.seconds:
        return False
    if MIDDLE * sent < goal.megabytes and run.flags["workers"] == max(WORKERS):
        return False
    return any(mean_loss(looks[:n]) <= goal.target for n in range(1, len(looks) + 1))


def results(points: list[list[float]], goal: Goal = Goal()) -> dict:
    """What the pages compare.

    Args:
        points: seconds, updates, megabytes and loss of each look.

    Returns:
        `reached`: seconds, updates and megabytes when the mean loss was the target; None if it
        never was. `after_seconds` and `after_megabytes`: the mean loss then; None if the run was
        shorter. `looks`: the points, of the last two thirds of the time. `curve`: some of all, with
        the mean loss.
    """
    if not points:
        return {"reached": None, "after_seconds": None, "after_megabytes": None,
                "looks": [], "curve": []}  # fmt: skip
    looks = [(at, loss) for at, *_, loss in points]
    ends, *columns = map(np.array, zip(*(point[:3] for point in points)))
    middles = MIDDLE * ends
    means = np.array([mean_loss(looks[: n + 1]) for n in range(len(looks))])
    seen = [middles, *(np.interp(middles, [0, *ends], [0, *column]) for column in columns)]

    def at(place: float) -> list[float]:
        """Seconds, updates and megabytes there, between two looks."""
        return [round(float(np.interp(place, range(len(looks)), column)), 3) for column in seen]

    def after(column: np.ndarray, least: float) -> float | None:
        found = float(np.interp(least, column, means))
        return round(found, 4) if column[-1] >= least and math.isfinite(found) else None

    low = np.flatnonzero(means <= goal.target)
    if len(low):
        n = int(low[0])
        part = (means[n - 1] - goal.target) / (means[n - 1] - means[n]) if n else 0.0
    last = ends[-1] / 3
    return {
        "reached": at(n - 1 + part if n else 0) if len(low) else None,
        "after_seconds": after(seen[0], goal.seconds),
        "after_megabytes": after(seen[2], goal.megabytes),
        "looks": [shown(*point) for point in points if point[0] >= last],
        "curve": [shown(*point) for point in zip(*seen, means)][:: max(1, len(points) // POINTS)],
    }


def shown(seconds: float, updates: float, megabytes: float, loss: float) -> list:
    """A point, rounded; a loss that is no number is None."""
    loss = round(float(loss), 4) if math.isfinite(loss) else None
    return [round(float(seconds), 2), round(float(updates)), round(float(megabytes), 3), loss]


class Places:
    """As many processes as may run at a time; a run that needs more than all of them runs alone.
    Who came first is first: else runs with few workers would overtake those with many."""

    def __init__(self, number: int):
        self._all, self._free, self._changed = number, number, threading.Condition()
        self._waiting = collections.deque()

    @contextlib.contextmanager
    def taken(self, number: int):
        number, me = min(number, self._all), object()
        with self._changed:
            self._waiting.append(me)
            self._changed.wait_for(lambda: self._waiting[0] is me and self._free >= number)
            self._waiting.popleft()
            self._free -= number
            self._changed.notify_all()  # there may be enough for the next one, too
        try:
            yield
        finally:
            with self._changed:
                self._free += number
                self._changed.notify_all()


def needed(scheme: str, workers: int, mbit: float) -> int:
    """How many of the places a run needs: as many as processes (workers, ps, snapshots.py). Where
    workers push after each mini-batch, and the link lets them, they need the cores for more."""
    often = "window" not in SCHEMES[scheme].defaults if scheme in SCHEMES else False
    return (workers + 2) * (2 if often and mbit > min(LINKS) else 1)


def run_all(
    jobs: list[tuple],
    goal: Goal,
    write_line,
    processes: int = PROCESSES,
    **more,
) -> None:
    """Runs jobs in their order, several at a time.

    Args:
        jobs: the first arguments of `real_run`.
        goal: of all of them.
        write_line: called with the result of each; one at a time.
        processes: how many at a time.
        more: flags of all of them; see `real_run`.
    """
    places, stop, one = Places(processes), threading.Event(), threading.Lock()

    def job(*arguments):
        with places.taken(needed(*arguments[:3])):
            if stop.is_set():
                return
            try:
                found = real_run(*arguments, goal, stop, more)
            except BaseException:
                if not stop.is_set():
                    print("failed:", *arguments, file=sys.stderr, flush=True)
                stop.set()
                raise
        if not stop.is_set():
            with one:
                write_line(found)

    with ThreadPoolExecutor(processes) as pool:
        try:
            for done in [pool.submit(job, *arguments) for arguments in jobs]:
                done.result()
        finally:
            stop.set()


def run(kept: dict, schemes: list[str]) -> None:
    """The real runs which `RUNS` does not have, in turns by seed."""
    if os.geteuid():
        sys.exit("scoreboard run needs root: it gives running workers priority over starting ones")
    os.nice(19)
    done = {(line["scheme"], line["workers"], line["mbit"], line["seed"]) for line in lines()}
    jobs = [
        (*setting, best_rate(kept, *setting), seed)
        for seed, setting in itertools.product(SEEDS, settings(schemes))
        if (*setting, seed) not in done
    ]

    def write_line(found: dict) -> None:
        with open(RUNS, "a") as file:
            file.write(json.dumps(found, allow_nan=False) + "\n")
        show(found)

    run_all(jobs, Goal(), write_line)


def quick(kept: dict, schemes: list[str]) -> None:
    """One process and two workers, to a loss of 2; keeps nothing."""
    chosen = [(ALONE, 1, max(LINKS)), *((scheme, 2, max(LINKS)) for scheme in schemes)]
    run_all([(*each, best_rate(kept, *each), min(SEEDS)) for each in chosen], QUICK, show)


def show(found: dict) -> None:
    seconds, updates, sent = found["reached"] or [math.nan] * 3
    what = "{scheme}, {workers} workers, {mbit} Mbit/s, seed {seed}".format(**found)
    print(f"{what}: {seconds:.1f} s, {updates:.0f} updates, {sent:.1f} MB", flush=True)


def lines() -> list[dict]:
    """The runs made so far."""
    return [json.loads(line) for line in RUNS.read_text().splitlines()] if RUNS.exists() else []


def complete() -> list[dict]:
    """The runs of those seeds that all settings have, by seed."""
    found = lines()
    made = collections.Counter(line["seed"] for line in found)
    return sorted((line for line in found if made[line["seed"]] == max(made.values())),
                  key=lambda line: line["seed"])  # fmt: skip


def main() -> None:
    kinds = {
        "tune": (tune, FOLDERS),
        "late": (late, [*FOLDERS, CONTROL]),
        "run": (run, [ALONE, *FOLDERS]),
        "quick": (quick, FOLDERS),
    }
    what, *names = sys.argv[1:] or [""]
    if what not in kinds or set(names) - set(kinds[what][1]):
        sys.exit(__doc__)
    command, every = kinds[what]
    command(read(FOUND), names or every)


if __name__ == "__main__":
    main()
