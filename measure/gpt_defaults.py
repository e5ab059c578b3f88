"""What the default run of each scheme makes of the small GPT, and how long it takes.

`bash measure/start.sh gpt_defaults [EXAMPLE ...]` runs each with three seeds, otherwise
as a reader would, and writes `gpt_defaults.json`, which the notebook A-Small-GPT shows. It takes
about 40 minutes.
"""

import json
import statistics
import sys

import example_runs
from searches import spread
from watch import ROOT

FOUND = ROOT / "measure" / "gpt_defaults.json"
WORK, SEEDS = ("--model", "gpt", "--data", "text"), (0, 1, 2)


def run(example: str, seed: int) -> dict:
    """The updates, examples, seconds and final test loss (bits per character) of a default run."""
    summary = example_runs.run(example, *WORK, "--seed", seed).summary
    return {
        "learning_rate": summary["flags"]["learning_rate"],
        "updates": summary["global_step"],
        "examples": summary["examples"],
        "seconds": round(summary["seconds"], 1),
        "bits_per_character": round(summary["test_bits_per_character"], 3),
    }


def table() -> str:
    """A Markdown table, by the median loss."""
    lines = ["| | learning rate | updates | mini-batches | seconds | bits per character |",
             "|---|---|---|---|---|---|"]  # fmt: skip
    found = json.loads(FOUND.read_text())
    losses = {name: [made["bits_per_character"] for made in runs] for name, runs in found.items()}
    for name in sorted(found, key=lambda name: statistics.median(losses[name])):
        made = found[name][0]
        seconds = statistics.median(each["seconds"] for each in found[name])
        lines.append(f"| {name} | {made['learning_rate']:g} | {made['updates']:,} "
                     f"| {made['examples'] // 32:,} | {seconds:.0f} "
                     f"| {spread(losses[name], '.2f')} |")  # fmt: skip
    return "\n".join(lines)


def main() -> None:
    from sweep import examples  # late: a notebook that shows the table has no Many-Workers

    found = json.loads(FOUND.read_text()) if FOUND.exists() else {}
    for example in sys.argv[1:] or examples():
        found[example] = [run(example, seed) for seed in SEEDS]
        print(example, found[example], flush=True)
        FOUND.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
