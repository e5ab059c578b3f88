"""Real runs over a link of 100 Mbit/s, beside what the simulation predicts.

    bash measure/start.sh linked speed     examples/s and staleness, 1 to 8 workers: 10 minutes
    bash measure/start.sh linked target    time to a test accuracy, every scheme: 20 minutes
    bash measure/start.sh linked cluster   8 workers with --compute_ms over three links: 20 minutes
    bash measure/start.sh linked again     the same runs, simulated again

Needs a machine that allows private networks. The results go to `linked.json`, which READMEs quote.
"""

import functools
import itertools
import json
import statistics
import sys

import example_runs
import simulate  # of Many-Workers
import watched_run
from cluster import Cluster
from watch import ROOT

FOUND = ROOT / "measure" / "linked.json"
MBIT = 100
WORK = ("--data", "synthetic", "--hidden", "128", "--batch_size", "64", "--learning_rate", "0.01")
# Scheme, window, and updates with one worker; asynchronous schemes make that many per worker.
SPEED = [("HogWild", 1, 150), ("AGN", 10, 100), ("AGN", 50, 60), ("Synchronous-SGD", 1, 100),
         ("AEASGD", 10, 100)]  # fmt: skip
WORKERS = (1, 2, 4, 8)
# Scheme, window, and updates over each link; the network and the batches are the scoreboard's.
CLUSTER = [("HogWild", 1, (1000, 3000, 3000)), ("AGN", 10, (500, 500, 500)),
           ("AEASGD", 10, (500, 500, 500)), ("Synchronous-SGD", 1, (80, 300, 400))]  # fmt: skip
SMALL = ("--data", "mnist1d", "--hidden", "128", "--batch_size", "8", "--learning_rate", "0.05")
LINKS = (10, 100, 1000)  # Mbit/s
MS, LATE = 50, "7:0.1"  # of each mini-batch; worker 7 takes three times as long
MOST = 3000  # updates
WINDOW = 10  # of each scheme that has one
PROBLEM = ("--hidden", "1024", "--target_accuracy", "0.97", "--steps", str(MOST))
TARGET = ("HogWild", "DC-ASGD", "AGN", "DOWNPOUR-Easy", "DOWNPOUR", "Dynamic-SGD", "AEASGD",
          "AEAMSGD", "Synchronous-SGD", "Synchronous-SGD-different-learning-rates", "SAGN",
          "Local-SGD")  # fmt: skip


def run(example: str, *flags) -> tuple[dict, list[list[dict]]]:
    """Runs an example over the slow link; returns its summary and the events of its workers."""
    finished = example_runs.run(example, "--link_mbit", MBIT, *flags)
    return finished.summary, finished.events


def speed() -> list[dict]:
    rows = []
    for scheme, window, count in SPEED:
        for n in WORKERS:
            steps = count if scheme.startswith("Sync") else count * n
            steps = max(30, steps // (n if n > 2 else 1))  # as long with many workers
            flags = ["--workers", n, "--steps", steps, *(["--window", window] * (window > 1))]
            real, events = run(scheme, *WORK, *flags)
            took = [mini_batch(e, scheme, window) for mine in events for e in mine]
            compute = statistics.median(took)
            words = [*WORK, *map(str, flags), "--scheme", scheme, "--link_mbit", str(MBIT)]
            options = simulate.parsed([*words, "--compute", str(compute)])
            cluster, journal = simulate.simulate(options)
            guess = journal.summary(cluster)
            rows.append({
                "scheme": scheme, "window": window, "workers": n, "compute": compute,
                "link_use": real["link_use"],
                "real": [real["examples_per_second"], real["staleness"]["mean"]],
                "simulated": [guess["examples_per_second"], guess["staleness"]["mean"]],
            })  # fmt: skip
            print(json.dumps(rows[-1]), flush=True)
    return rows


def cluster() -> list[dict]:
    """Eight workers that sleep while they would compute, without and with a straggler. They start
    together: in a short run, those that come later would be less stale."""
    rows = []
    for scheme, window, counts in CLUSTER:
        for (mbit, steps), late in itertools.product(zip(LINKS, counts), ([], ["--delay", LATE])):
            own = ["--window", str(window)] * (window > 1)
            flags = [*SMALL, "--workers", "8", "--steps", str(steps), *own, *late]
            more = "--link_mbit", mbit, "--compute_ms", MS
            with watched_run.Run(scheme, *flags, *more, every=1, share=1, together=True) as run:
                run.wait_for_end()
                found = measured(run.events(), scheme, window)
            row = {"scheme": scheme, "window": window, "mbit": mbit, "late": bool(late),
                   "flags": flags, **found}  # fmt: skip
            rows.append(row | {"simulated": like(row)})
            print(json.dumps(rows[-1]), flush=True)
    return rows


def measured(events: list[list[dict]], scheme: str, window: int) -> dict:
    """What a simulation of the run needs, and what it should find: the median seconds of a
    mini-batch, when the workers began, speed and staleness. No half of the workers may be late."""
    took = [mini_batch(event, scheme, window) for mine in events for event in mine]
    return {"compute": round(statistics.median(took), 5),
            "starts": [round(mine[:2][-1]["time"] - events[0][:2][-1]["time"], 4)
                       for mine in events],
            "real": [round(value, 4) for value in speed_and_staleness(events)]}  # fmt: skip


def mini_batch(event: dict, scheme: str, window: int) -> float:
    """Seconds for each mini-batch of a step. In an elastic scheme, the first one begins with the
    pull: what is counted as computing begins when that has arrived."""
    after = event["compute"]
    if simulate.SCHEMES[scheme].worker != "elastic":
        return after / window
    return (after + min(event["pull"], after / max(1, window - 1))) / window


def like(row: dict) -> tuple[float, float]:
    """Speed and staleness of the same run, simulated."""
    return speed_and_staleness(simulated(row))


def simulated(row: dict) -> list[list[dict]]:
    """The events of each worker. The workers begin when the real ones did: whether two use the link
    at the same moment depends on that."""
    words = ["--scheme", row["scheme"], "--link_mbit", str(row["mbit"]), "--spread", "0.01",
             "--compute", str(row["compute"]), *row["flags"]]  # fmt: skip
    written = Written()
    make = functools.partial(Started, starts=row["starts"])
    simulate.simulate(simulate.parsed(words), make_cluster=make, report=written)
    return [mine for mine in written.events if mine]


class Started(Cluster):
    """Worker k begins at `starts[k]`; the first of them at once."""

    def __init__(self, *args, starts: list[float]):
        super().__init__(*args)
        self.starts = starts

    def run(self, worker) -> None:
        def process(cluster, k):
            yield cluster.wait(self.starts[k] - min(self.starts))
            yield from worker(cluster, k)

        super().run(process)


class Written:
    """Keeps the events of a simulated run."""

    def __init__(self):
        self.events = [[] for _ in range(8)]

    def write(self, name: str, line: dict) -> None:
        if name.startswith("events-worker-"):
            self.events[int(name.rpartition("-")[2])].append(line)

    def show(self, *_) -> None:
        pass


def speed_and_staleness(events: list[list[dict]]) -> tuple[float, float]:
    """Examples per second and mean staleness, without the first fifth of the events."""
    every = sorted((event for mine in events for event in mine), key=lambda event: event["time"])
    start, *rest = every[len(every) // 5 :]
    took = rest[-1]["time"] - start["time"]
    stale = statistics.mean(event["staleness"] for event in rest)
    return sum(event["examples"] for event in rest) / took, stale


def target() -> list[dict]:
    rows = []
    for scheme in TARGET:
        for n in (2, 4):
            has_window = "window" in simulate.SCHEMES[scheme].defaults
            flags = [*PROBLEM, "--workers", n, *(["--window", WINDOW] * has_window)]
            some = [run(scheme, *flags, "--seed", s)[0] for s in range(3)]
            for found in some:
                found["bytes_per_example"] = (
                    found["bytes_per_step"]
                    * sum(task["local_steps"] for task in found["tasks"])
                    / (WINDOW if has_window else 1)
                    / found["examples"]
                )
            names = ("examples_per_second", "bytes_per_example", "seconds", "global_step")
            row = {name: statistics.median(found[name] for found in some) for name in names}
            reached = max(found["global_step"] for found in some) < MOST
            row |= {"window": WINDOW if has_window else 1, "reached": reached}
            rows.append({"scheme": scheme, "workers": n, **row})
            print(json.dumps(rows[-1]), flush=True)
    return rows


def table(kind: str) -> str:
    """A Markdown table of what was measured, for the READMEs."""
    rows = json.loads(FOUND.read_text())[kind]
    if kind == "cluster":
        lines = ["|  | Mbit/s | late | examples/s | simulated | mean staleness | simulated |",
                 "|---|---|---|---|---|---|---|"]  # fmt: skip
        for row in rows:
            (speed, stale), (guess, guessed) = row["real"], row["simulated"]
            name = row["scheme"] + f", T = {row['window']}" * (row["window"] > 1)
            off = f" ({guessed / stale - 1:+.0%})" if stale else ""
            lines.append(f"| {name} | {row['mbit']:,} | {'worker 7' if row['late'] else ''} "
                         f"| {speed:,.0f} | {guess:,.0f} ({guess / speed - 1:+.0%}) | {stale:.2f} "
                         f"| {guessed:.2f}{off} |")  # fmt: skip
        return "\n".join(lines)
    if kind == "speed":
        columns = ("", "workers", "examples/s", "the link allows", "speed simulated",
                   "mean staleness", "staleness simulated")  # fmt: skip
        lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
        for row in rows:
            name = row["scheme"] + f", T = {row['window']}" * (row["window"] > 1)
            (speed, stale), (guess, guessed) = row["real"], row["simulated"]
            allowed = speed / row["link_use"]  # all bytes on the wire were counted
            lines.append(f"| {name} | {row['workers']} | {speed:,.0f} "
                         f"| {allowed:,.0f} ({speed / allowed - 1:+.0%}) | {guess:,.0f} "
                         f"({guess / speed - 1:+.0%}) | {stale:.2f} | {guessed:.2f} |")  # fmt: skip
        return "\n".join(lines)
    columns = "2 / 4 workers", "examples/s", "bytes per example", "seconds", "mini-batches"
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    for scheme in TARGET:
        kind = simulate.SCHEMES[scheme]
        pair = [row for row in rows if row["scheme"] == scheme]
        for row in pair:  # all workers together; a synchronous update holds a push of each
            pushes = row["workers"] if kind.worker == "synchronous" else 1
            row["batches"] = row["global_step"] * pushes * row["window"]
        shown = {"examples_per_second": ",.0f", "bytes_per_example": ",.0f", "seconds": ".1f",
                 "batches": ",.0f"}  # fmt: skip
        cells = [" / ".join(format(row[name], how) if row["reached"] else "never" for row in pair)
                 for name, how in shown.items()]  # fmt: skip
        lines.append(f"| {scheme} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    kinds = {"speed": speed, "target": target, "cluster": cluster}
    if len(sys.argv) != 2 or sys.argv[1] not in [*kinds, "again"]:
        sys.exit(__doc__)
    found = json.loads(FOUND.read_text()) if FOUND.exists() else {}
    if sys.argv[1] == "again":
        for row in found["cluster"]:
            row["simulated"] = like(row)
    else:
        found[sys.argv[1]] = kinds[sys.argv[1]]()
    FOUND.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
