"""Runs one task of a run on Slurm, whose job step has such an agent for each.

Each line of stdin starts the task of one agent, and all end with stdin. Each line of stdout tells
which task has ended, and its exit code.
"""

import json
import os
import signal
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from common.launch.processes import Group, Process

GPUS = "CUDA_VISIBLE_DEVICES"


def report() -> None:
    while True:
        task, code = group.exits.get()
        # If Slurm ends the step, its SIGTERM may reach the task before the agent.
        if not ending.wait(1 if code == -signal.SIGTERM else 0):
            print(task.index, code, flush=True)


def end(code: int) -> None:
    """Kills the task, and ends without waiting for the thread."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ending.set()
    group.kill()
    os._exit(code)


group, ending = Group(), threading.Event()
rank, env = int(os.environ["SLURM_PROCID"]), dict(os.environ)
if GPUS in env and "SLURM_GPUS_PER_TASK" not in env:  # each task has all GPUs of its node
    gpus = env[GPUS].split(",")
    env[GPUS] = gpus[int(env["SLURM_LOCALID"]) % len(gpus)]
signal.signal(signal.SIGTERM, lambda *_: end(1))
threading.Thread(target=report, daemon=True).start()
for line in sys.stdin:
    whose, reasons, log, command = json.loads(line)
    if whose == rank:
        task = Process("task", rank, command, Path(log))
        task.restarts, task.restart_reasons = len(reasons), reasons
        group.start(task, env)
end(0)
