"""Runs across machines, which are network namespaces here, with real links of 100 Mbit/s.

    bash measure/start.sh several_machines places      where the tasks go
    bash measure/start.sh several_machines pays        when a second machine pays
    bash measure/start.sh several_machines screens     what a run shows over ssh, and on Slurm

Needs root, and what `hosts.py` and `slurm_cluster.py` need. The results go to
`several_machines.json`, which a README quotes.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import hosts
import numpy as np
import slurm_cluster
from watch import ROOT, Unavailable, eventually, processes

FOUND = ROOT / "measure" / "several_machines.json"
MBIT = 100
# Two layers of the same size. TensorFlow deals weights, biases, weights, biases to the ps in turn:
# of two, one gets all weights; of three, two get those of one layer each.
WIDTH, HIDDEN = 392, 130
WORK = ("--hidden", HIDDEN, "--batch_size", 64, "--learning_rate", 0.01)
MACHINES = tuple("abcde")
# The machines of each ps, and those of each worker.
PLACES = [
    ("a", "a"), ("a", "b"),
    ("a", "aa"), ("a", "ab"), ("a", "bc"),
    ("aaa", "de"), ("ab", "de"), ("abc", "de"), ("abc", "abc"),
]  # fmt: skip
SCHEMES = {"HogWild": (1, 60), "AGN": (10, 40)}  # scheme -> window, updates of each worker
COMPUTING = (0.01, 0.1, 0.5)  # seconds that a mini-batch takes


def examples(folder: str) -> str:
    """Writes random examples of `WIDTH` numbers and as many classes; returns the file's path."""
    random, path = np.random.default_rng(0), f"{folder}/random.npz"
    x, y = random.random((4 * WIDTH, WIDTH), np.float32), np.arange(4 * WIDTH) % WIDTH
    np.savez(path, x_train=x, y_train=y, x_test=x[:100], y_test=y[:100])
    return path


def run(some, example: str, ps: str, workers: str, steps: int, *flags) -> dict:
    """Starts the tasks by hand, each on its machine; returns the summary of the run."""
    place = [("ps", k, name) for k, name in enumerate(ps)]
    place += [("worker", k, name) for k, name in enumerate(workers)]
    listed = {"ps": [], "worker": []}
    for i, (job, _, name) in enumerate(place):
        listed[job].append(f"{some.addresses[name]}:{2222 + i}")
    with tempfile.TemporaryDirectory() as folder:
        tasks, data = [], examples(folder)
        for job, k, name in place:
            command = ["ip", "netns", "exec", some.spaces[name], sys.executable]
            command += [ROOT / example / f"{job}.py", "--job_name", job, "--task_index", k]
            command += ["--ps_hosts", ",".join(listed["ps"])]
            command += ["--worker_hosts", ",".join(listed["worker"])]
            command += ["--results", folder, "--steps", steps, "--data", data, *WORK, *flags]
            log = open(f"{folder}/{job}-{k}.log", "w")
            tasks.append(subprocess.Popen([*map(str, command)], stdout=log, stderr=log))
        try:
            codes = [task.wait(300) for task in reversed(tasks)]  # a ps waits for the workers
        finally:
            for task in tasks:
                task.kill()
        if any(codes):
            sys.exit("\n".join(path.read_text() for path in Path(folder).glob("*.log")))
        collect = [sys.executable, "-m", "common.commands.collect", folder]
        subprocess.run(collect, cwd=ROOT, env=os.environ | {"NO_CURVES": "1"}, check=True)
        found = json.loads(Path(folder, "summary.json").read_text())
    return {
        "example": example, "ps": ps, "workers": workers, "steps": found["global_step"],
        "examples_per_second": found["examples_per_second"], "seconds": found["seconds"],
        "staleness": found["staleness"]["mean"],
    }  # fmt: skip


def places(some) -> list[dict]:
    rows = []
    for example, (window, updates) in SCHEMES.items():
        for ps, workers in PLACES if window == 1 else PLACES[:5]:
            flags = ["--window", window] * (window > 1)
            often = 15 if set(ps) & set(workers) else 1  # without a link, updates take no time
            count = often * updates * len(workers)
            rows.append(run(some, example, ps, workers, count, *flags))
            print(json.dumps(rows[-1]), flush=True)
    return rows


def pays(some) -> list[dict]:
    rows = []
    for example, (window, updates) in SCHEMES.items():
        for seconds in COMPUTING:
            for ps, workers in (("a", "a"), ("a", "ab"), ("a", "bc")):
                flags = ["--window", window] * (window > 1)
                flags += ["--delay", ",".join(f"{k}:{seconds}" for k in range(len(workers)))]
                count = max(6, updates // (1 + round(seconds * window * 4)))
                found = run(some, example, ps, workers, count * len(workers), *flags)
                rows.append(found | {"computing": seconds})
                print(json.dumps(rows[-1]), flush=True)
    return rows


def over_ssh(some) -> str:
    """What a run over ssh shows."""
    command = ["bash", "Several-Machines/run.sh", "--hosts", "a,b,c", "HogWild", "--workers", "2"]
    how = {"cwd": ROOT, "env": os.environ | {"PYTHON": sys.executable}, "text": True}
    words = [*command[:2], "--ssh", some.ssh, *command[2:]]
    screen = subprocess.run(words, stdout=subprocess.PIPE, check=True, **how).stdout
    return shown(f"$ {' '.join(command)}", screen)


def on_slurm() -> str:
    """What a job on Slurm shows. Its worker 1 is killed once."""
    words = ["--nodes", "3", "Several-Machines/slurm.sbatch", "HogWild", "--steps", "4000"]
    with slurm_cluster.running() as cluster, tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "screen")
        job = cluster.run("sbatch", "--parsable", f"--chdir={ROOT}", f"--output={file}", *words)
        assert eventually(lambda: file.exists() and "[worker 1] step" in file.read_text(), 60)
        (pid,) = [pid for pid, line in processes().items()
                  if "HogWild/worker.py" in line and "--task_index 1" in line]  # fmt: skip
        os.kill(pid, signal.SIGKILL)
        cluster.wait(job, 120)
        screen = f"Submitted batch job {job}\n$ cat example-{job}.out\n{file.read_text()}"
    return shown(f"$ sbatch {' '.join(words)}", screen)


def shown(command: str, screen: str) -> str:
    """The screen as a Markdown block; removes the results folder that it names."""
    path = re.findall(r"results in (\S+)", screen)[-1]
    shutil.rmtree(ROOT / path)
    lines = [line.rstrip() for line in screen.strip().splitlines()]
    return "\n".join(["```console", command, *lines, "```"])


def screens(some) -> dict[str, str]:
    return {"ssh": over_ssh(some), "slurm": on_slurm()}


def where(row: dict) -> str:
    """Which tasks are on which machine."""
    tasks = [("ps", k, name) for k, name in enumerate(row["ps"])]
    tasks += [("worker", k, name) for k, name in enumerate(row["workers"])]
    machines = dict.fromkeys(row["ps"] + row["workers"])
    return "; ".join(
        f"{name}: " + ", ".join(f"{job} {k}" for job, k, there in tasks if there == name)
        for name in sorted(machines)
    )


def table(kind: str) -> str:
    """What was measured, as Markdown for the README: a table (`places`, `second`, `pays`), or what
    a run shows (`ssh`, `slurm`)."""
    if kind in ("ssh", "slurm"):
        return json.loads(FOUND.read_text())["screens"][kind]
    rows = json.loads(FOUND.read_text())["pays" if kind == "pays" else "places"]
    if kind == "pays":
        lines = ["| | a mini-batch takes at least | 1 machine, 1 worker | 2 machines, 2 workers "
                 "| 3 machines, 2 workers |", "|---|---|---|---|---|"]  # fmt: skip
        for example, (window, _) in SCHEMES.items():
            for seconds in COMPUTING:
                kind = example, seconds
                one, *more = [row["examples_per_second"] for row in rows
                              if (row["example"], row["computing"]) == kind]  # fmt: skip
                cells = " | ".join(f"{n:,.0f} ({n / one:.1f}x)" for n in more)
                name = example + f", T = {window}" * (window > 1)
                lines.append(f"| {name} | {1e3 * seconds:.0f} ms | {one:,.0f} | {cells} |")
        return "\n".join(lines)
    plain, window = ([row for row in rows if row["example"] == name] for name in SCHEMES)
    if kind == "second":
        some = [row for row in plain if len(row["ps"]) > 1 or row["workers"] == "bc"]
        lines = ["| machines | HogWild, examples/s |", "|---|---|"]
        lines += [f"| {where(row)} | {row['examples_per_second']:,.0f} |" for row in some]
        return "\n".join(lines)
    lines = ["| machines | HogWild, examples/s | AGN, T = 10, examples/s |", "|---|---|---|"]
    for pair in zip(plain, window):
        cells = (f"{row['examples_per_second']:,.0f}" for row in pair)
        lines.append(f"| {where(pair[0])} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    kinds = {"places": places, "pays": pays, "screens": screens}
    if len(sys.argv) != 2 or sys.argv[1] not in kinds:
        sys.exit(__doc__)
    found = json.loads(FOUND.read_text()) if FOUND.exists() else {}
    mbit = None if sys.argv[1] == "screens" else MBIT
    with tempfile.TemporaryDirectory() as keys:
        try:
            with hosts.started(Path(keys), MACHINES, mbit) as some:
                found[sys.argv[1]] = kinds[sys.argv[1]](some)
        except Unavailable as reason:
            sys.exit(f"error: {reason}")
    FOUND.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
