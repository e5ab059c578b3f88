"""The measurements behind the tables of One-Network-per-Device and of Actor-Learner.

`bash measure/start.sh searches [seeds] [speed] [actors]` writes them to `searches.json`, which
the READMEs quote. `seeds`: for three seeds, the best network, all networks and their ensemble.
`speed`: trials per minute with one worker, on one core and on two, and with two workers, and
HogWild's updates. `actors`: updates until Actor-Learner reaches its target, with one, two and four
actors. Each takes a few minutes.
"""

import json
import os
import statistics
import sys

import example_runs
from watch import ROOT

FOUND = ROOT / "measure" / "searches.json"
FOLDER, SEEDS, REPEATS, STEPS = "One-Network-per-Device", (0, 1, 2), 3, 4000


def run(example: str, *flags) -> tuple[dict, list[dict]]:
    """The summary of a run, and its trials, if it has any."""
    finished = example_runs.run(example, *flags)
    print(*finished.screen.splitlines()[-2:], sep="\n", flush=True)
    return finished.summary, finished.trials


def seeds() -> dict:
    """Test accuracies by seed."""
    keys = ("test_accuracy", "members_mean_accuracy", "ensemble_accuracy")
    found = {seed: run(FOLDER, "--seed", seed)[0] for seed in SEEDS}
    return {str(seed): {key: each[key] for key in keys} for seed, each in found.items()}


def speed() -> dict:
    """Updates per second of all workers in each run, by example, number of workers and number of
    cores. One worker can be faster on one core, where its threads need not wake a sleeping one. The
    runs take turns."""
    rates: dict = {}
    allowed = os.sched_getaffinity(0)
    for _ in range(REPEATS):
        for example in (FOLDER, "HogWild"):
            for workers, cores in ((1, 1), (1, 2), (2, 2)):
                os.sched_setaffinity(0, sorted(allowed)[:cores])  # the run inherits it
                found, trials = run(example, "--workers", workers, "--steps", STEPS)
                made = found["global_step"]
                seconds = {example: found["seconds"]}
                if trials:
                    seconds["training"] = sum(each["seconds"] for each in trials) / workers
                for name, took in seconds.items():
                    of = rates.setdefault(name, {}).setdefault(f"{workers} on {cores}", [])
                    of.append(made / took)
    os.sched_setaffinity(0, allowed)
    return rates


def actors() -> dict:
    """Updates until Actor-Learner reaches its target, by number of actors, for each seed."""
    found: dict = {}
    for seed in range(5):
        for workers in (1, 2, 4):
            made, _ = run("Actor-Learner", "--workers", workers, "--seed", seed)
            row = {"updates": made["global_step"], "seconds": made["seconds"],
                   "staleness": made["staleness"]["mean"]}  # fmt: skip
            for name, value in row.items():
                found.setdefault(str(workers), {}).setdefault(name, []).append(value)
    return found


def spread(values: list[float], form: str = ",.0f") -> str:
    """Median (smallest to largest)."""
    parts = (statistics.median(values), min(values), max(values))
    return "{} ({} to {})".format(*(format(part, form) for part in parts))


def table(which: str) -> str:
    """The measurements as a Markdown table."""
    measured = json.loads(FOUND.read_text())
    if which not in measured:
        sys.exit(f"{FOUND.name} has no {which} yet: run bash measure/start.sh searches {which}")
    found = measured[which]
    if which == "seeds":
        text = ("Test accuracy with the default flags, nine networks per seed "
                "(`measure/searches.py`); one test example is worth 0.3 points, and the standard "
                "error of an accuracy near 98% is 0.7. The best network has the highest "
                "*validation* accuracy.")  # fmt: skip
        lines = ["| seed | best network | all, on average | ensemble |", "|---|---|---|---|"]
        lines += [f"| {seed} | {' | '.join(f'{value:.1%}' for value in each.values())} |"
                  for seed, each in found.items()]  # fmt: skip
    elif which == "actors":
        count = len(found["1"]["updates"])
        text = (
            f"Median of {count} seeds (smallest to largest), on two cores (`measure/searches.py`)."
        )
        lines = ["| actors | updates to the target | seconds | mean staleness |",
                 "|---|---|---|---|"]  # fmt: skip
        lines += [f"| {n} | {spread(each['updates'])} | {spread(each['seconds'], '.1f')} | "
                  f"{spread(each['staleness'], '.1f')} |" for n, each in found.items()]  # fmt: skip
    else:
        count = len(found[FOLDER]["2 on 2"])
        text = (f"Median of {count} interleaved runs (smallest to largest), on a machine with two "
                f"cores (`measure/searches.py`). A trial is {STEPS:,} updates of one network, and "
                "HogWild makes as many. *Training alone* leaves out the rest of a trial: its "
                "graph, its session, the validation, the claim and the hand-in. The speed-up "
                "is that of two workers over one on its better number of cores.")  # fmt: skip
        lines = ["| | 1 worker on one core | 1 worker on two | 2 workers | speed-up |",
                 "|---|---|---|---|---|"]  # fmt: skip
        rows = (("One-Network-per-Device, trials/minute", FOLDER, 60 / STEPS),
                ("training alone, updates/s", "training", 1),
                ("HogWild, updates/s", "HogWild", 1))  # fmt: skip
        for label, name, factor in rows:
            *one, two = ([factor * rate for rate in rates] for rates in found[name].values())
            gain = statistics.median(two) / max(map(statistics.median, one))
            lines.append(f"| {label} | {' | '.join(map(spread, [*one, two]))} | {gain:.2f} |")
    return "\n".join([text, "", *lines])


def main() -> None:
    found = json.loads(FOUND.read_text()) if FOUND.exists() else {}
    for name in sys.argv[1:] or ["seeds", "speed", "actors"]:
        found[name] = {"seeds": seeds, "speed": speed, "actors": actors}[name]()
        FOUND.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
