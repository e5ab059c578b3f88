"""Kills worker 1 in the middle of a run, and shows what happens.

.venv/bin/python TensorFlow-2/kill_a_worker.py STRATEGY
"""

import argparse
import itertools
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # common/ is next to this folder
from common.record import results, trace

STEPS, AFTER = 800, 200  # --steps; the update after which worker 1 is killed
DELAY = "0:0.03,1:0.03"  # slow enough for a killed worker to return before the end


def main(strategy: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        command = ["bash", f"{HERE}/run.sh", "--plain", "--strategy", strategy, "--delay", DELAY,
                   "--steps", str(STEPS), "--results", folder]  # fmt: skip
        run = subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        tail, reached = results.Tail(where / "events-worker-1.jsonl"), 0
        while reached < AFTER and run.poll() is None:
            reached = max([reached, *(event["global_step"] for event in tail.read())])
            time.sleep(0.01)
        for process in psutil.Process(run.pid).children(recursive=True):
            if {"--job_name worker", "--task_index 1"} <= words(process):
                process.kill()
        killed = time.time()
        screen = run.communicate()[0].splitlines()
        screen = [line for line in screen if not re.match(r"\[\w+ \d\] step ", line)]
        print(*(line.partition("; results in")[0] for line in screen[1:]), sep="\n")
        for log in sorted((where / "logs").glob("*.log")):
            lost = re.compile(r"^> \[\w+ \d\] lost another task$.*?again.*?$", re.M | re.S)
            found = lost.findall(log.read_text())
            print(*(f"\n{log.name}:\n{said}\n" for said in found), end="")
        report(where, killed)


def words(process: psutil.Process) -> set[str]:
    """Every pair of adjacent words on its command line."""
    try:
        return {" ".join(pair) for pair in itertools.pairwise(process.cmdline())}
    except psutil.Error:
        return set()


def report(where: Path, killed: float) -> None:
    """Prints when each worker continued, and how many updates were made twice."""
    both, summary = trace.read_events(where, 2), json.loads((where / "summary.json").read_text())
    print()
    for k, events in enumerate(both):
        later = [began - killed for event in events if (began := trace.began(event)) > killed]
        went_on = f"began its next step {min(later):.2f} s after the kill"
        print(f"worker {k}", went_on if later else "began no more steps: the run had ended")
    made = summary["global_step"]
    if summary["flags"]["strategy"] == "parameter_server":
        said = f"updates applied twice: {made - STEPS}"
    else:
        numbers = [event["global_step"] for event in both[0]]
        said = f"updates lost and redone: {len(numbers) - len(set(numbers))}"
    print(f"--steps {STEPS}: global_step is {made}; {said}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("strategy", choices=("parameter_server", "multi_worker_mirrored"))
    main(parser.parse_args().strategy)
