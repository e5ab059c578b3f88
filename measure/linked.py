"""Real runs over a link of 100 Mbit/s, beside what the simulation predicts.

    bash measure/start.sh linked speed     examples/s and staleness, 1 to 8 workers: 10 minutes
    bash measure/start.sh linked target    time to a test accuracy, every scheme: 20 minutes
    bash measure/start.sh linked cluster   8 workers with --compute_ms over three links: 15 minutes

Needs a machine that allows private networks. The results go to `linked.json`, which READMEs quote.
"""

import itertools
import json
import statistics
import sys

import example_runs
import simulate  # of Many-Workers
from watch import ROOT

FOUND = ROOT / "measure" / "linked.json"
MBIT = 100
WORK = ("--data", "synthetic", "--hidden", "128", "--batch_size", "64", "--learning_rate", "0.01")
# Scheme, window, and updates with one worker; asynchronous schemes make that many per worker.
SPEED = [("HogWild", 1, 150), ("AGN", 10, 100), ("AGN", 50, 60), ("Synchronous-SGD", 1, 100),
         ("AEASGD", 10, 100)]  # fmt: skip
WORKERS = (1, 2, 4, 8)
# Scheme, window, and updates over each link.
CLUSTER = [("HogWild", 1, (100, 800, 2000)), ("AGN", 10, (80, 200, 200)),
           ("AEASGD", 10, (80, 200, 200)), ("Synchronous-SGD", 1, (12, 100, 300))]  # fmt: skip
LINKS = (10, 100, 1000)  # Mbit/s
MS, LATE = 50, "7:0.1"  # of each mini-batch; worker 7 takes three times as long
MOST = 3000  # updates
WINDOW = 10  # of each scheme that has one
PROBLEM = ("--hidden", "1024", "--target_accuracy", "0.97", "--steps", str(MOST))
TARGET = ("HogWild", "DC-ASGD", "AGN", "DOWNPOUR-Easy", "DOWNPOUR", "Dynamic-SGD", "AEASGD",
          "AEAMSGD", "Synchronous-SGD", "Synchronous-SGD-different-learning-rates", "SAGN",
          "Local-SGD")  # fmt: skip


def run(example: str, *flags, mbit: float = MBIT) -> tuple[dict, list[list[dict]]]:
    """Runs an example over the slow link; returns its summary and the events of its workers."""
    finished = example_runs.run(example, "--link_mbit", mbit, *flags)
    return finished.summary, finished.events


def speed() -> list[dict]:
    rows = []
    for scheme, window, count in SPEED:
        for n in WORKERS:
            steps = count if scheme.startswith("Sync") else count * n
            steps = max(30, steps // (n if n > 2 else 1))  # as long with many workers
            flags = ["--workers", n, "--steps", steps, *(["--window", window] * (window > 1))]
            real, events = run(scheme, *WORK, *flags)
            compute = statistics.median(e["compute"] for mine in events for e in mine) / window
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
    """Eight workers that sleep while they would compute, without and with a straggler."""
    rows = []
    for scheme, window, counts in CLUSTER:
        for (mbit, steps), late in itertools.product(zip(LINKS, counts), ([], ["--delay", LATE])):
            flags = [
                "--workers",
                8,
                "--steps",
                steps,
                *(["--window", window] * (window > 1)),
                *late,
            ]
            real, events = run(scheme, *WORK, "--compute_ms", MS, *flags, mbit=mbit)
            # Worker 7 may be late.
            took = [event["compute"] / window for mine in events[:7] for event in mine]
            compute = statistics.median(took)
            words = [*WORK, *map(str, flags), "--scheme", scheme, "--link_mbit", str(mbit),
                     "--compute", str(compute), "--spread", "0.01"]  # fmt: skip
            simulated, journal = simulate.simulate(simulate.parsed(words))
            guess = journal.summary(simulated)
            rows.append({
                "scheme": scheme, "window": window, "mbit": mbit, "late": bool(late),
                "compute": compute, "link_use": real["link_use"],
                "real": [real["examples_per_second"], real["staleness"]["mean"]],
                "simulated": [guess["examples_per_second"], guess["staleness"]["mean"]],
            })  # fmt: skip
            print(json.dumps(rows[-1]), flush=True)
    return rows


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
    if len(sys.argv) != 2 or sys.argv[1] not in kinds:
        sys.exit(__doc__)
    found = json.loads(FOUND.read_text()) if FOUND.exists() else {}
    found[sys.argv[1]] = kinds[sys.argv[1]]()
    FOUND.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
