"""Real runs over slow links, beside the same runs simulated.

    bash measure/start.sh linked real     8 workers, also with one late: half an hour
    bash measure/start.sh linked again    simulates them, and the scoreboard's with 8 workers

The real runs are made one at a time, on a machine that does nothing else. A simulation gets what
was measured: how long a mini-batch took (the median); when the workers began; how long the
machine's cores need for a pull or a push, from a run of HogWild without computing; and the time of
a message, from one with one worker (of the scoreboard's, which are made several at a time, for
those). The rest is computed: speed and staleness. So are the updates that each run of the
scoreboard needs. A worker writes down when it began its first step, which TensorFlow still had to
prepare; and who pulls first matters. So these runs are simulated twice: the workers begin when they
say, or all at once. The results go to `linked.json`, which a README quotes.
"""

import functools
import itertools
import json
import math
import statistics
import sys
from collections import defaultdict

import grid
import scoreboard
import simulate  # of Many-Workers
from cluster import transfer_seconds
from journal import LINES
from kept import read, write
from scoreboard import LATE, LINKS, Watched
from speeds import speed_and_staleness
from toys import Written
from watch import ROOT

FOUND = ROOT / "measure" / "linked.json"
WORKERS, _, DELAY = LATE
SCHEMES = ("HogWild", "Stale-Synchronous-Parallel", "AGN", "AEASGD", "Synchronous-SGD", "Local-SGD")
SECONDS = 30  # of each real run


class Same(Watched):
    """Worker k begins at `starts[k]`; the first of them at once. Whether two use the link at the
    same moment depends on that."""

    def __init__(self, *args, starts: list[float]):
        super().__init__(*args)
        self.starts, self.points = starts, []  # of `scoreboard.results`

    def update(self, w, workers) -> None:
        looks = len(self.losses)
        super().update(w, workers)
        for at, loss in self.losses[looks:]:
            self.points.append([at, self.updates, 0.0, loss])

    def run(self, worker) -> None:
        def process(cluster, k):
            yield cluster.wait(self.starts[k] - min(self.starts))
            yield from worker(cluster, k)

        super().run(process)


def real(kept: dict) -> None:
    """The real runs, one at a time; the rates are the scoreboard's."""
    rates = functools.partial(scoreboard.best_rate, read(scoreboard.FOUND))
    alone, most = ("HogWild", 1, max(LINKS)), ("HogWild", WORKERS, max(LINKS))
    every = [(scheme, WORKERS, mbit) for mbit, scheme in itertools.product(LINKS, SCHEMES)]
    delay = ",".join(f"{k}:{seconds}" for k, seconds in DELAY.items())
    kept["runs"], kept["busy"] = [], []
    for where, settings, more in (
        ("busy", [most], {"compute_ms": None}),
        ("runs", [alone, *every], {}),
        ("runs", every, {"delay": delay}),
    ):
        jobs = [(*setting, rates(*setting), 0) for setting in settings]
        ready = functools.partial(add, kept[where], "delay" in more)
        scoreboard.run_all(jobs, scoreboard.Goal(longest=SECONDS), ready, 1, **more)


def add(runs: list[dict], late: bool, line: dict) -> None:
    runs.append(line | {"late": late})
    print(json.dumps(line["cluster"]), flush=True)


def again(kept: dict) -> None:
    """Simulates each run: the same seed, rate and length."""
    boards = [line | {"late": False} for line in scoreboard.complete()]
    handled = request(*kept["busy"])
    for name, wanted in (("speed", kept.get("runs", [])), ("updates", boards)):
        ready = [line for line in wanted if "cluster" in line]
        times = {"latency": latency(ready, handled), "request": handled}
        ready = [line for line in ready if line["workers"] == WORKERS]
        found = grid.processes().map(beside, ready, itertools.repeat(times))
        kept[name] = times | {"rows": list(found)}


def request(busy: dict) -> float:
    """Seconds that the machine's cores need for a pull or a push: a step has one of each, and
    without computing the workers make as many as the cores can."""
    return round(scoreboard.WORK["batch_size"] / busy["cluster"]["real"][0] / 2, 5)


def latency(lines: list[dict], handled: float) -> float:
    """Seconds that a message takes. A step of HogWild with one worker: a mini-batch, two transfers,
    which are also `handled`, and four messages (a request, a pull, a push, a confirmation)."""
    batch = scoreboard.WORK["batch_size"]
    transfers = 2 * (transfer_seconds(scoreboard.PARAMETERS, max(LINKS)) + handled)
    found = [
        batch / line["cluster"]["real"][0] - line["cluster"]["compute"] - transfers
        for line in lines
        if (line["scheme"], line["workers"], line["mbit"]) == ("HogWild", 1, max(LINKS))
    ]
    return round(statistics.median(found) / 4, 5)


def beside(line: dict, times: dict) -> dict:
    """Of a run and its simulation: examples per second, mean staleness, and the updates until the
    target (None: never reached). `at_once`: these updates if all workers begin at once. At the top
    level, since other processes call it."""
    cluster, events = simulated(line, times)
    speed, staleness = speed_and_staleness(events)
    at_once = line["cluster"] | {"starts": [0.0] * line["workers"]}
    other, _ = simulated(line | {"cluster": at_once}, times)
    return {name: line[name] for name in ("scheme", "mbit", "late", "seed")} | {
        "real": [*line["cluster"]["real"], updates_of(line["reached"])],
        "simulated": [round(speed, 1), round(staleness, 3), needed(cluster)],
        "at_once": needed(other),
    }


def needed(cluster: Same) -> int | None:
    return updates_of(scoreboard.results(cluster.points)["reached"])


def updates_of(reached: list[float] | None) -> int | None:
    return None if reached is None else round(reached[1])


def simulated(line: dict, times: dict) -> tuple[Same, list[list[dict]]]:
    """The same run, simulated, and the events of its workers. `times`: `latency` and `request`."""
    names = ("scheme", "workers", "mbit", "rate", "seed")
    flags = scoreboard.flags_of(*(line[name] for name in names))
    flags |= {"compute": line["cluster"]["compute"]} | times
    flags |= {"delay": DELAY if line["late"] else None}
    flags["steps"] = LINES  # more than it needs; all its events are written
    written = Written()
    make = functools.partial(Same, starts=line["cluster"]["starts"])
    cluster, _ = simulate.simulate(simulate.options(**flags), make_cluster=make, report=written)
    return cluster, written.events()


def table(kind: str) -> str:
    """A Markdown table for the READMEs: `speed` (and staleness), or `updates`."""
    found = defaultdict(dict)
    for row in read(FOUND)[kind]["rows"]:
        name = row["scheme"] + ", one late" * row["late"]
        found[name].setdefault(row["mbit"], []).append(row)
    what = {"speed": (off, stale), "updates": (both_ranges,)}[kind]
    columns = ["Mbit/s", *[f"{mbit:,}" for mbit in LINKS] * len(what)]
    rows = [[name, *(show(some[mbit]) for show in what for mbit in LINKS)]
            for name, some in sorted(found.items())]  # fmt: skip
    return "\n".join(f"| {' | '.join(row)} |" for row in [columns, ["---"] * len(columns), *rows])


def off(rows: list[dict]) -> str:
    """The simulated speed, as the difference from the real one."""
    (row,) = rows
    return f"{row['simulated'][0] / row['real'][0] - 1:+.0%}"


def stale(rows: list[dict]) -> str:
    """The real and the simulated staleness."""
    (row,) = rows
    real, guess = row["real"][1], row["simulated"][1]
    return f"{real:.2f} / {guess:.2f}" if real or guess else "0"


def ranges(rows: list[dict]) -> list[list[float]]:
    """The least and the most updates, real and simulated; infinite if the target never came."""
    real = [row["real"][2] for row in rows]
    guesses = [guess for row in rows for guess in (row["simulated"][2], row["at_once"])]
    sides = [[math.inf if n is None else n for n in side] for side in (real, guesses)]
    return [[min(side), max(side)] for side in sides]


def both_ranges(rows: list[dict]) -> str:
    shown = [["never" if math.isinf(n) else f"{n:,}" for n in dict.fromkeys(side)]
             for side in ranges(rows)]  # fmt: skip
    return " / ".join(" to ".join(side) for side in shown)


def main() -> None:
    kinds = {"real": real, "again": again}
    if len(sys.argv) != 2 or sys.argv[1] not in kinds:
        sys.exit(__doc__)
    kept = read(FOUND)
    kinds[sys.argv[1]](kept)
    write(FOUND, kept, indent=1)


if __name__ == "__main__":
    main()
