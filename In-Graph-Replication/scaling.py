"""Measures the work of a client that drives 1 to 8 replicas; the control is one client of several.

`.venv/bin/python In-Graph-Replication/scaling.py [--steps N]`; about eight minutes on two cores.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
RUNS = 3  # of each row, in turn; the table shows the median, and the range in brackets
CONTROL = "Synchronous-SGD"
ROWS = [("averaged", 1), ("averaged", 2), ("averaged", 4), ("averaged", 8), ("threads", 8),
        (CONTROL, 2), (CONTROL, 8)]  # fmt: skip
PROBES = {  # replacements that make a copy of the control's script measure itself
    "import tensorflow.compat.v1 as tf\n": "import tensorflow.compat.v1 as tf\nimport cost\n",
    "# 3. Parameters": "cost = cost.Cost(task)\n# 3. Parameters",
    "with session.training(": "with cost, session.training(",
    "        sess.run(step)": "        sess.run(step), cost.step()",
}
COLUMNS = {  # title: key, factor, format, whether to show the range
    "replicas": ("replicas", 1, "{:.0f}", False),
    "operations": ("nodes", 1, "{:,.0f}", False),
    "graph kB": ("graph_bytes", 1e-3, "{:,.0f}", False),
    "CPU ms/step": ("cpu_per_step", 1e3, "{:.1f}", True),
    "CPU ms/batch": ("cpu_per_batch", 1e3, "{:.1f}", False),
    "kB sent": ("sent_per_step", 1e-3, "{:,.1f}", False),
    "kB received": ("received_per_step", 1e-3, "{:,.1f}", False),
    "examples/s": ("examples_per_second", 1, "{:,.0f}", True),
}


def measured(folder: Path, name: str, workers: int, steps: int) -> dict:
    """A run's `client.json`, its examples per second, and the client's CPU time per mini-batch."""
    flags = ["--mode", name] if folder == HERE else []
    with tempfile.TemporaryDirectory() as results:
        command = ["bash", folder / "run.sh", "--plain", "--workers", workers, "--steps", steps,
                   "--results", results, *flags]  # fmt: skip
        env = os.environ | {"PYTHON": sys.executable}
        done = subprocess.run([*map(str, command)], env=env, capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stdout + done.stderr)
        found, summary = (
            json.loads(Path(results, file).read_text()) for file in ("client.json", "summary.json")
        )
    batches = workers if name == "averaged" else 1  # per step of this client
    return found | {"cpu_per_batch": found["cpu_per_step"] / batches,
                    "examples_per_second": summary["examples_per_second"]}  # fmt: skip


def control(scratch: Path) -> Path:
    """A copy of Synchronous-SGD in which the chief, worker 0, also measures itself."""
    for name in ("common", CONTROL):
        shutil.copytree(HERE.parent / name, scratch / name,
                        ignore=shutil.ignore_patterns("results", "__pycache__"))  # fmt: skip
    shutil.copy(HERE / "cost.py", scratch / CONTROL)
    script = scratch / CONTROL / "worker.py"
    source = script.read_text()
    for old, new in PROBES.items():
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    script.write_text(source)
    return scratch / CONTROL


def row(name: str, runs: list[dict]) -> list[str]:
    """One row of the table."""
    cells = [name]
    for key, factor, form, ranged in COLUMNS.values():
        values = [run[key] for run in runs]
        if None in values:
            cells.append("?")
            continue
        of = (min, statistics.median, max)
        low, middle, high = (form.format(factor * f(values)) for f in of)
        cells.append(f"{middle} ({low} - {high})" if ranged else middle)
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=300, help="steps in each run (default: 300)")
    steps = parser.parse_args().steps
    found: dict[tuple, list[dict]] = {each: [] for each in ROWS}
    with tempfile.TemporaryDirectory() as scratch:
        folders = {CONTROL: control(Path(scratch))}
        for _ in range(RUNS):
            for (name, workers), runs in found.items():
                runs.append(measured(folders.get(name, HERE), name, workers, steps))
    table = [["client", *COLUMNS], *(row(name, runs) for (name, _), runs in found.items())]
    widths = [max(map(len, column)) for column in zip(*table)]
    for name, *cells in table:
        print(name.ljust(widths[0]), *(c.rjust(w) for c, w in zip(cells, widths[1:])), sep="  ")


if __name__ == "__main__":
    main()
