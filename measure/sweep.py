"""The small sweep behind the defaults: test accuracy by learning rate and number of workers.

`bash measure/start.sh sweep [EXAMPLE ...]` runs each example with two and with four workers,
at rates from a quarter of its default rate to four times as high, each with three seeds, and
otherwise with its defaults. It writes the accuracies to `sweep.json`, which the READMEs quote. It
takes about 40 minutes.
"""

import json
import re
import sys

import example_runs
from schemes import SCHEMES  # of Many-Workers
from watch import ROOT

from common.told.example import example_of

FOUND = ROOT / "measure" / "sweep.json"
FACTORS, WORKERS, SEEDS = (0.25, 1, 2, 4), (2, 4), (0, 1, 2)


def examples() -> list[str]:
    """The schemes that can run with two and with four workers on the same data."""
    scripts = {name: ROOT / name / "worker.py" for name in SCHEMES}
    return [
        name
        for name, script in scripts.items()
        if script.exists() and example_of(script)[0]["workers"] == 2
    ]


def accuracy(example: str, rate: float, workers: int, seed: int) -> float | None:
    """Accuracy of the global parameters on the digits' test set; None if the loss was NaN."""
    flags = ("--learning_rate", rate, "--workers", workers, "--seed", seed)
    try:
        return example_runs.run(example, *flags).summary["test_accuracy"]
    except example_runs.Failed as failed:
        if "is NaN or infinite: " in str(failed):
            return None
        raise


def main() -> None:
    found = json.loads(FOUND.read_text()) if FOUND.exists() else {}
    for example in sys.argv[1:] or examples():
        defaults, _ = example_of(ROOT / example / "worker.py")
        found[example] = {}
        for factor in FACTORS:
            rate = float(f"{factor * defaults['learning_rate']:.3g}")
            reached = {str(n): [accuracy(example, rate, n, s) for s in SEEDS] for n in WORKERS}
            found[example][str(rate)] = reached
            print(example, rate, reached, flush=True)
        text = json.dumps(found, indent=2) + "\n"
        one_line = re.compile(r"\[\s+(.*?),\s+(.*?),\s+(.*?)\s+\]")
        FOUND.write_text(one_line.sub(r"[\1, \2, \3]", text))


if __name__ == "__main__":
    main()
