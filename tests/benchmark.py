"""How fast is an example? HogWild's real run beside its bare loop and TensorFlow's own strategy.

    python tests/benchmark.py [--repeats 3] [--steps 3000] [--json FILE]

The contenders take turns, so that a busy machine slows all of them down; what counts are the
ratios of their medians. Two workers and one ps train on this machine:

- HogWild run: `python -m common.launch HogWild`, with all that a run does for its user.
- bare loop: the graph of HogWild/worker.py, and around it nothing but `while True: run(step)`.
- ParameterServerStrategy: the same work with TensorFlow's own `tf.distribute`, in the form of its
  guide: a dataset of examples, `strategy.run`, and the loss of every step returned, which the
  examples log as well.
- the same, tuned: the least that can be scheduled, with one thread per task, a dataset of indices
  without autotuning, no `strategy.run`, and no loss returned.
- import: `python -c "import tensorflow"`, to which the start-up is compared.
"""

import argparse
import contextlib
import json
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from common import network, results
from common.processes import Group, Process, describe_exit

WORKERS, BATCH, HIDDEN, RATE = 2, 64, 128, 0.05
TASKS = str(Path(__file__).with_name("benchmark_tasks.py"))
RUN, BARE, STRATEGY = "HogWild run", "bare loop", "ParameterServerStrategy"
TUNED = "the same, tuned"
START, IMPORT = "start-up", "import tensorflow"
RATIOS = (  # what, in relation to what, and what it should be
    (RUN, BARE, ">=", 0.85),
    (RUN, STRATEGY, ">=", 3.0),
    (RUN, TUNED, ">=", 1.0),
    (START, IMPORT, "<=", 2.5),
)
PATIENCE = 600  # seconds for one run


def run_all(
    commands: dict[str, list[str]],
    last: list[str],
    folder: Path,
    watch: Callable[[], None] = lambda: None,
    env: dict[str, str] | None = None,
) -> float:
    """Runs a contender's processes and leaves none behind.

    Args:
        commands: name -> what follows `python`.
        last: the names of those with whose end the contender has finished.
        folder: for the logs.
        watch: called now and then while they run.
        env: what is added to their environment.

    Returns:
        When they were started, in seconds since 1970.

    Raises:
        SystemExit: with the end of its log, when one of them fails or takes too long.
    """
    group = Group()
    env = os.environ | {"PYTHONPATH": str(ROOT)} | (env or {})
    began, waiting = time.time(), set(last)
    try:
        for name, command in commands.items():
            group.start(Process(name, 0, [sys.executable, *command], folder / f"{name}.log"), env)
        while waiting:
            watch()
            with contextlib.suppress(queue.Empty):
                process, process.exit_code = group.exits.get(timeout=0.1)
                if process.exit_code:
                    how = describe_exit(process.exit_code)
                    sys.exit(f"{process.job} {how}\n{process.last_lines()}")
                waiting.discard(process.job)
            if time.time() - began > PATIENCE:
                sys.exit(f"{', '.join(sorted(waiting))}: not over after {PATIENCE} s")
    finally:
        group.kill()
    return began


def peaks(folder: Path, memory: dict[str, float]) -> None:
    """Notes the peak resident memory so far, in MB, of each task that writes into `folder`."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if str(folder) not in words or "--job_name" not in words:
                continue
            name = " ".join(words[words.index(word) + 1] for word in ("--job_name", "--task_index"))
            status = (process / "status").read_text().splitlines()
            memory[name] = next(int(s.split()[1]) / 1000 for s in status if s.startswith("VmHWM"))
        except (OSError, StopIteration):  # it has just ended
            continue


def training(steps: int, folder: Path) -> list[str]:
    """The flags that all contenders share."""
    flags = {"data": "synthetic", "model": "mlp", "hidden": HIDDEN, "batch_size": BATCH,
             "learning_rate": RATE, "steps": steps, "results": folder}  # fmt: skip
    return [word for name, value in flags.items() for word in (f"--{name}", str(value))]


def hogwild_run(steps: int, folder: Path, memory: dict[str, float]) -> dict[str, float]:
    """Examples per second and seconds to the first step; the tasks' memory goes into `memory`."""
    command = ["-m", "common.launch", str(ROOT / "HogWild"), "--plain", "--workers", str(WORKERS)]
    launcher = {"launcher": [*command, *training(steps, folder)]}
    began = run_all(launcher, ["launcher"], folder, lambda: peaks(folder, memory))
    summary = json.loads((folder / "summary.json").read_text())
    first = min(results.began(events[0]) for events in results.read_events(folder, WORKERS))
    return {RUN: summary["examples_per_second"], START: first - began}


def bare_loop(steps: int, folder: Path) -> dict[str, float]:
    """Examples per second from the moment all workers start together to the last update."""
    ps, *workers = [f"localhost:{port}" for port in network.free_ports(1 + WORKERS, False)]
    cluster = ["--ps_hosts", ps, "--worker_hosts", ",".join(workers), *training(steps, folder)]
    names = [f"bare-{k}" for k in range(WORKERS)]
    commands = {"ps": [str(ROOT / "HogWild" / "ps.py"), *cluster]} | {
        name: [TASKS, "bare", "--task_index", str(k), *cluster] for k, name in enumerate(names)
    }
    run_all(commands, names, folder)
    return {BARE: rate(folder, names)}


def strategy(steps: int, folder: Path, tuned: bool) -> dict[str, float]:
    """The same, after a warm-up in which the function is traced."""
    env = {"TUNED": "1"} if tuned else {}
    ports = network.free_ports(2 + WORKERS, False)
    chief, ps, *workers = [f"localhost:{port}" for port in ports]
    cluster = ["--ps_hosts", ps, "--worker_hosts", ",".join(workers), *training(steps, folder)]
    tasks = {f"strategy-worker-{k}": ("worker", k) for k in range(WORKERS)} | {
        "strategy-ps": ("ps", 0),
        "strategy": ("coordinator", 0),
    }
    commands = {
        name: [TASKS, role, chief, "--task_index", str(k), *cluster]
        for name, (role, k) in tasks.items()
    }
    run_all(commands, ["strategy"], folder, env=env)  # the others would never end
    return {TUNED if tuned else STRATEGY: rate(folder, ["strategy"])}


def rate(folder: Path, names: list[str]) -> float:
    """Examples per second of what the processes of these names wrote."""
    notes = [json.loads((folder / f"{name}.json").read_text()) for name in names]
    seconds = max(note["ended"] for note in notes) - min(note["began"] for note in notes)
    return BATCH * sum(note["steps"] for note in notes) / seconds


def import_tensorflow() -> dict[str, float]:
    """Seconds for a fresh Python to import TensorFlow."""
    began = time.time()
    command = [sys.executable, "-c", "import tensorflow"]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    return {IMPORT: time.time() - began}


def table(found: dict) -> str:
    """What was found, as text."""
    work = found["work"]
    lines = [
        f"{work['workers']} workers, {work['ps']} ps; synthetic data (60,000 x 784, 10 classes), "
        f"mlp with {work['hidden']} hidden units, batches of {work['batch_size']}, "
        f"{work['steps']:,} steps; medians of {work['repeats']}, taken in turns",
        "",
        f"{'':26}{'median':>10}   every run",
    ]
    for name, values in found["runs"].items():
        seconds = name in (START, IMPORT)
        shown = [
            f"{v:.1f} s" if seconds else f"{v:,.0f}" for v in [found["medians"][name], *values]
        ]
        unit = "" if seconds else "examples/s"
        lines.append(f"{name:26}{shown[0]:>10}   {'  '.join(shown[1:])}  {unit}".rstrip())
    lines += ["", f"{'':40}{'ratio':>8}   target"]
    for ratio in found["ratios"]:
        name = f"{ratio['what']} / {ratio['of']}"
        met = "met" if ratio["met"] else "not met"
        lines.append(f"{name:40}{ratio['ratio']:8.2f}   {ratio['target']:8} {met}")
    lines += ["", "peak memory of a HogWild run's tasks"]
    lines += [f"{name:40}{mb:8,.0f} MB" for name, mb in sorted(found["memory_mb"].items())]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3, help="of every contender (default: 3)")
    parser.add_argument("--steps", type=int, default=3000, help="per run (default: 3000)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="writes the numbers there")
    flags = parser.parse_args()
    network.choose("auto", print)
    runs = {name: [] for name in (RUN, BARE, STRATEGY, TUNED, START, IMPORT)}
    memory: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        for repeat in range(flags.repeats):
            peak: dict[str, float] = {}
            for contender in (
                lambda folder: import_tensorflow(),
                lambda folder, peak=peak: hogwild_run(flags.steps, folder, peak),
                lambda folder: bare_loop(flags.steps, folder),
                lambda folder: strategy(flags.steps, folder, tuned=False),
                lambda folder: strategy(flags.steps, folder, tuned=True),
            ):
                folder = Path(tempfile.mkdtemp(dir=temporary))
                for name, value in contender(folder).items():
                    runs[name].append(value)
                    print(f"{repeat + 1}/{flags.repeats}  {name}: {value:,.1f}", flush=True)
            for task, value in peak.items():
                memory.setdefault(task, []).append(value)
    medians = {name: statistics.median(values) for name, values in runs.items()}
    ratios = []
    for what, of, relation, bound in RATIOS:
        ratio = medians[what] / medians[of]
        met = ratio >= bound if relation == ">=" else ratio <= bound
        target = f"{relation} {bound:g}"
        ratios.append({"what": what, "of": of, "ratio": ratio, "target": target, "met": met})
    work = {"workers": WORKERS, "ps": 1, "batch_size": BATCH, "hidden": HIDDEN,
            "learning_rate": RATE, "steps": flags.steps, "repeats": flags.repeats}  # fmt: skip
    found = {
        "work": work,
        "runs": runs,
        "medians": medians,
        "ratios": ratios,
        "memory_mb": {task: statistics.median(values) for task, values in memory.items()},
        "versions": results.versions(),
    }
    print("\n" + table(found))
    if flags.json:
        results.write(flags.json, lambda path: path.write_text(json.dumps(found, indent=2) + "\n"))


if __name__ == "__main__":
    main()
