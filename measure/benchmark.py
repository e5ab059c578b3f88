"""Measures how fast the examples are, compared with a bare loop, TensorFlow's strategy and limits.

    bash measure/start.sh benchmark [--repeats 3] [--steps 10000] [--json FILE]
                                    [--torch_python PYTHON]

The contenders take turns, so that a busy machine slows all of them down; only the ratios of
their medians matter. Two workers and one ps train on this machine:

- HogWild run: `python -m common.launch HogWild`, with everything that a run does.
- bare loop: the graph of HogWild/worker.py, with only `while True: run(step)` around it.
- ParameterServerStrategy: the same work with TensorFlow's own `tf.distribute`, as in its guide:
  a dataset of examples, `strategy.run`, and the loss of every step returned, since the
  examples log it too.
- the same, tuned: with as little overhead as possible: one thread per task, a dataset of indices
  without autotuning, no `strategy.run`, and no loss returned.
- ten steps a call: the strategy's function makes 10 steps each time it is scheduled.
- the other examples: real runs like the first, with the flags and lengths in `EXAMPLES`.
- PyTorch: two processes that average their parameters every 10 steps, with gloo; left out if torch
  is missing (`pip install -r measure/requirements-benchmark.txt`).
- two single processes: Non-Distributed-Setup twice at the same time, each on its own core; no
  distribution can beat that on two cores.
- import: `python -c "import tensorflow"`, for comparison with the start-up.
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

from watch import ROOT

from common.launch import network
from common.launch.processes import Group, Process, describe_exit
from common.record import results, trace
from common.record.summary import versions

WORKERS, BATCH, HIDDEN, RATE = 2, 64, 128, 0.05
TASKS = str(Path(__file__).with_name("benchmark_tasks.py"))
RUN, BARE, STRATEGY = "HogWild run", "bare loop", "ParameterServerStrategy"
TUNED = "the same, tuned"
CALLS = "the same, ten steps a call"
AGN, AGN50, DOWNPOUR = "AGN, window 10", "AGN, window 50", "DOWNPOUR-Easy, window 10"
SYNCHRONOUS, THREADS = "Synchronous-SGD", "HogWild, 2 threads"
TEN = ", --steps_per_execution 10"
TORCH, LIMIT = "PyTorch, averaging every 10", "two single processes"
STALE, THEORY = "mean staleness, AGN", "if evenly spread, AGN"
START, IMPORT = "start-up", "import tensorflow"
UNITS = {STALE: "updates", THEORY: "updates", START: "s", IMPORT: "s"}  # the others: examples/s
EXAMPLES = {  # name: folder, flags, its number of updates as a multiple of --steps
    AGN: ("AGN", ["--window", "10"], 0.2),
    AGN50: ("AGN", ["--window", "50"], 0.2),
    DOWNPOUR: ("DOWNPOUR-Easy", ["--window", "10"], 0.2),
    SYNCHRONOUS: ("Synchronous-SGD", [], 0.5),
    RUN + TEN: ("HogWild", ["--steps_per_execution", "10"], 1),
    AGN + TEN: ("AGN", ["--window", "10", "--steps_per_execution", "10"], 0.2),
    SYNCHRONOUS + TEN: ("Synchronous-SGD", ["--steps_per_execution", "10"], 0.5),
    THREADS: ("HogWild", ["--threads", str(WORKERS)], 3),
}
RATIOS = (  # name, what it is compared with, and the target
    (RUN, BARE, ">=", 0.90),
    (RUN, STRATEGY, ">=", 2.0),
    (RUN + TEN, STRATEGY, ">=", 3.0),
    (RUN, TUNED, ">=", 1.0),
    (RUN + TEN, CALLS, ">=", 1.0),
    (AGN, CALLS, ">=", 6.0),
    (DOWNPOUR, CALLS, ">=", 6.0),
    (AGN, TORCH, ">=", 1.3),
    (DOWNPOUR, TORCH, ">=", 1.3),
    (AGN, LIMIT, ">=", 0.40),
    (DOWNPOUR, LIMIT, ">=", 0.40),
    (AGN50, LIMIT, ">=", 0.70),
    (THREADS, LIMIT, ">=", 0.75),
    (SYNCHRONOUS + TEN, STRATEGY, ">=", 2.0),
    (STALE, THEORY, ">=", 0.85),
    (STALE, THEORY, "<=", 1.15),
    (START, IMPORT, "<=", 2.5),
)
PATIENCE = 600  # seconds for one run


def run_all(
    commands: dict[str, list[str]],
    last: list[str],
    folder: Path,
    watch: Callable[[], None] = lambda: None,
    env: dict[str, str] | None = None,
    python: str = sys.executable,
) -> float:
    """Runs a contender's processes and leaves none behind.

    Args:
        commands: name -> the arguments of `python`.
        last: the names of the processes whose end is the contender's end.
        folder: the logs go beside it, since a run needs an empty results folder.
        watch: called repeatedly while they run.
        env: added to their environment.
        python: the interpreter.

    Returns:
        When they started, in seconds since 1970.

    Raises:
        SystemExit: if one of them fails (with the end of its log) or takes too long.
    """
    group = Group()
    env = os.environ | {"PYTHONPATH": str(ROOT)} | (env or {})
    began, waiting = time.time(), set(last)
    try:
        for name, command in commands.items():
            log = folder.with_name(f"{folder.name}-{name}.log")
            group.start(Process(name, 0, [python, *command], log), env)
        while waiting:
            watch()
            with contextlib.suppress(queue.Empty):
                process, process.exit_code = group.exits.get(timeout=0.1)
                if process.exit_code:
                    how = describe_exit(process.exit_code)
                    sys.exit(f"{process.job} {how}\n{process.last_lines()}")
                waiting.discard(process.job)
            if time.time() - began > PATIENCE:
                sys.exit(f"{', '.join(sorted(waiting))}: not finished after {PATIENCE} s")
    finally:
        group.kill()
    return began


def peaks(folder: Path, memory: dict[str, float]) -> None:
    """Records the peak resident memory so far, in MB, of each task that writes to `folder`."""
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
    """Examples per second and seconds to the first step; puts the tasks' memory into `memory`."""
    command = ["-m", "common.launch", str(ROOT / "HogWild"), "--plain", "--workers", str(WORKERS)]
    launcher = {"launcher": [*command, *training(steps, folder)]}
    began = run_all(launcher, ["launcher"], folder, lambda: peaks(folder, memory))
    summary = json.loads((folder / "summary.json").read_text())
    first = min(trace.began(events[0]) for events in trace.read_events(folder, WORKERS))
    return {RUN: summary["examples_per_second"], START: first - began}


def example_run(what: str, steps: int, folder: Path) -> dict[str, float]:
    """Examples per second of a real run, from its summary."""
    example, flags, factor = EXAMPLES[what]
    workers = [] if "--threads" in flags else ["--workers", str(WORKERS)]
    command = ["-m", "common.launch", str(ROOT / example), "--plain", *workers, *flags]
    launcher = {"launcher": [*command, *training(int(factor * steps), folder)]}
    run_all(launcher, ["launcher"], folder)
    summary = json.loads((folder / "summary.json").read_text())
    found = {what: summary["examples_per_second"]}
    if what == AGN:
        found |= {STALE: summary["staleness"]["mean"], THEORY: summary["staleness"]["theory"]}
    return found


def single_processes(steps: int, folder: Path) -> dict[str, float]:
    """Examples per second of one process per worker, each on its own core."""
    pinned = (
        "import os, sys; cores = sorted(os.sched_getaffinity(0)); "
        "os.sched_setaffinity(0, {cores[int(sys.argv.pop(1)) % len(cores)]}); "
        "from common.launch.launcher import main; sys.exit(main(sys.argv[1:]))"
    )
    folders = [folder / str(k) for k in range(WORKERS)]
    commands = {}
    for k, own in enumerate(folders):
        example = [str(ROOT / "Non-Distributed-Setup"), "--plain", *training(5 * steps, own)]
        commands[f"single-{k}"] = ["-c", pinned, str(k), *example]
    run_all(commands, list(commands), folder)
    summaries = [json.loads((own / "summary.json").read_text()) for own in folders]
    return {LIMIT: sum(summary["examples_per_second"] for summary in summaries)}


def torch_run(steps: int, folder: Path, python: str) -> dict[str, float]:
    """Examples per second of PyTorch with gloo."""
    (port,) = network.free_ports(1, False)
    script = str(Path(__file__).with_name("benchmark_torch.py"))
    names = [f"torch-{k}" for k in range(WORKERS)]
    commands = {
        name: [script, str(k), str(port), str(steps), str(folder)] for k, name in enumerate(names)
    }
    run_all(commands, names, folder, python=python)
    return {TORCH: rate(folder, names)}


def has_torch(python: str) -> bool:
    return not subprocess.run([python, "-c", "import torch"], capture_output=True).returncode


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


def strategy(what: str, steps: int, folder: Path) -> dict[str, float]:
    """The same, after a warm-up in which the function is traced."""
    env = {STRATEGY: {}, TUNED: {"TUNED": "1"}, CALLS: {"STEPS_PER_CALL": "10"}}[what]
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
    run_all(commands, ["strategy"], folder, env=env)  # the others never end
    return {what: rate(folder, ["strategy"])}


def rate(folder: Path, names: list[str]) -> float:
    """Examples per second, from the files of the processes with these names."""
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
    """The results as text."""
    work = found["work"]
    lines = [
        f"{work['workers']} workers, {work['ps']} ps; synthetic data (60,000 x 784, 10 classes), "
        f"mlp with {work['hidden']} hidden units, batches of {work['batch_size']}, "
        f"{work['steps']:,} steps in HogWild's run; medians of {work['repeats']} interleaved runs",
        "",
        f"{'':30}{'median':>10}   all runs",
    ]
    for name, values in found["runs"].items():
        unit = UNITS.get(name, "examples/s")
        shown = [f"{v:.2f}" if name in UNITS else f"{v:,.0f}"
                 for v in [found["medians"][name], *values]]  # fmt: skip
        lines.append(f"{name:30}{shown[0]:>10}   {'  '.join(shown[1:])}  {unit}")
    lines += ["", f"{'':58}{'ratio':>8}   target"]
    for ratio in found["ratios"]:
        name = f"{ratio['what']} / {ratio['of']}"
        met = "met" if ratio["met"] else "not met"
        lines.append(f"{name:58}{ratio['ratio']:8.2f}   {ratio['target']:8} {met}")
    lines += ["", "peak memory of a HogWild run's tasks"]
    lines += [f"{name:58}{mb:8,.0f} MB" for name, mb in sorted(found["memory_mb"].items())]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--repeats", type=int, default=3, help="runs of each contender (default: 3)"
    )
    parser.add_argument("--steps", type=int, default=10000, help="per run (default: 10000)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="writes the numbers there")
    parser.add_argument("--torch_python", default=sys.executable, metavar="PYTHON",
                        help="one that has torch (default: this one)")  # fmt: skip
    flags = parser.parse_args()
    network.choose("auto", print)
    torch = has_torch(flags.torch_python)
    if not torch:
        print("torch is not installed: the comparison with PyTorch is left out")
    names = [RUN, BARE, STRATEGY, TUNED, CALLS, *EXAMPLES, LIMIT, *[TORCH] * torch, *UNITS]
    runs = {name: [] for name in names}
    memory: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        for repeat in range(flags.repeats):
            peak: dict[str, float] = {}
            for contender in (
                lambda folder: import_tensorflow(),
                lambda folder, peak=peak: hogwild_run(flags.steps, folder, peak),
                lambda folder: bare_loop(flags.steps, folder),
                lambda folder: example_run(RUN + TEN, flags.steps, folder),
                lambda folder: strategy(STRATEGY, flags.steps, folder),
                lambda folder: example_run(SYNCHRONOUS, flags.steps, folder),
                lambda folder: strategy(TUNED, flags.steps, folder),
                lambda folder: example_run(SYNCHRONOUS + TEN, flags.steps, folder),
                lambda folder: example_run(AGN, flags.steps, folder),
                lambda folder: example_run(AGN + TEN, flags.steps, folder),
                lambda folder: strategy(CALLS, 2 * flags.steps, folder),
                lambda folder: example_run(DOWNPOUR, flags.steps, folder),
                *[lambda folder: torch_run(2 * flags.steps, folder, flags.torch_python)] * torch,
                lambda folder: single_processes(flags.steps, folder),
                lambda folder: example_run(AGN50, flags.steps, folder),
                lambda folder: example_run(THREADS, flags.steps, folder),
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
        if of not in medians:
            continue
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
        "versions": versions(),
    }
    print("\n" + table(found))
    if flags.json:
        text = json.dumps(found, indent=2) + "\n"
        results.write(flags.json, lambda file: file.write(text.encode()))


if __name__ == "__main__":
    main()
