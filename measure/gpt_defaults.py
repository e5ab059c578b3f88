"""What the default run of each scheme makes of the small GPT, and how long it takes.

`bash measure/start.sh gpt_defaults [EXAMPLE ...]` runs each once, as a reader would, and writes
`gpt_defaults.json`, which the notebook A-Small-GPT shows. It takes about 15 minutes.
"""

import json
import sys

import example_runs
from watch import ROOT

FOUND = ROOT / "measure" / "gpt_defaults.json"
WORK = ("--model", "gpt", "--data", "text")


def run(example: str) -> dict:
    """The updates, examples, seconds and final test loss (bits per character) of a default run."""
    summary = example_runs.run(example, *WORK).summary
    return {
        "learning_rate": summary["flags"]["learning_rate"],
        "updates": summary["global_step"],
        "examples": summary["examples"],
        "seconds": round(summary["seconds"], 1),
        "bits_per_character": round(summary["test_bits_per_character"], 3),
    }


def table() -> str:
    """A Markdown table, by the loss."""
    lines = ["| | learning rate | updates | mini-batches | seconds | bits per character |",
             "|---|---|---|---|---|---|"]  # fmt: skip
    found = json.loads(FOUND.read_text())
    for name, made in sorted(found.items(), key=lambda item: item[1]["bits_per_character"]):
        lines.append(f"| {name} | {made['learning_rate']:g} | {made['updates']:,} "
                     f"| {made['examples'] // 32:,} | {made['seconds']:.0f} "
                     f"| {made['bits_per_character']:.2f} |")  # fmt: skip
    return "\n".join(lines)


def main() -> None:
    from sweep import examples  # late: a notebook that shows the table has no Many-Workers

    found = json.loads(FOUND.read_text()) if FOUND.exists() else {}
    for example in sys.argv[1:] or examples():
        found[example] = run(example)
        print(example, found[example], flush=True)
        FOUND.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
