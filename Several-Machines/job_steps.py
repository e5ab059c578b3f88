"""Steps of a Slurm job: one with all tasks of a run, and short ones before and after it."""

import contextlib
import json
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from common import fail
from common.launch.processes import Process

# On a node, the steps share what the job has there, and divide its cores as tasks of run.sh do.
SRUN = ["srun", "--quiet", "--overlap", "--cpu-bind=none", "--export=ALL"]
PIPE = subprocess.PIPE


class Tasks:
    """All tasks of a run as one step, which does not outlive the launcher; used as a `Group`."""

    def __init__(self, tasks: list[Process], nodes: list[str], apart: list[str], env: dict):
        """Starts an `agent.py` for each task, on its node. `apart`: nodes with their own disks."""
        self.exits: queue.Queue[tuple[Process, int]] = queue.Queue()
        self._tasks, self._nodes, self._apart = tasks, nodes, apart
        self._running: set[Process] = set()
        where = [f"--ntasks={len(nodes)}", f"--nodes={len(set(nodes))}"]
        where += ["--distribution=arbitrary", f"--nodelist={','.join(nodes)}"]
        # If an agent is killed, Slurm ends the step; once one has ended, within 10 s.
        ends = ["--kill-on-bad-exit=1", "--wait=10"]
        agent = [sys.executable, Path(__file__).with_name("agent.py")]
        self._said = tempfile.TemporaryFile("w+")  # a pipe that nobody reads would fill up
        pipes = {"stdin": PIPE, "stdout": PIPE, "stderr": self._said}
        self._srun = subprocess.Popen([*SRUN, *where, *ends, *agent], env=env, text=True,
                                      start_new_session=True, **pipes)  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def start(self, process: Process, env: dict[str, str]) -> None:
        """Starts or restarts a task; when it ends, `exits` gets the task and its exit code."""
        process.exit_code, process.popen = None, self._srun
        process.log.touch()
        self._running.add(process)
        rank, log = self._tasks.index(process), str(process.log)
        line = json.dumps([rank, process.restart_reasons, log, process.command])
        try:
            print(line, file=self._srun.stdin, flush=True)
        except BrokenPipeError:  # the step has ended
            self._reader.join()  # the log says why
            self.exits.put((process, 1))

    def _read(self) -> None:
        for line in self._srun.stdout:
            if not (found := re.fullmatch(r"(?:\d+: )?(\d+) (-?\d+)\n", line)):
                continue  # from the site's prolog
            rank, code = map(int, found.groups())
            process, node = self._tasks[rank], self._nodes[rank]
            if code and node in self._apart:
                copy(node, process.log.parents[1])  # the launcher looks into the log
            self._running.remove(process)
            self.exits.put((process, code))
        code = abs(self._srun.wait())
        self._said.seek(0)
        said = self._said.read()
        for process in [task for task in self._tasks if task in self._running]:
            if code:
                with contextlib.suppress(OSError), open(process.log, "a") as log:
                    log.write(f"{said}the job step ended too early\n")
            self.exits.put((process, code or -signal.SIGKILL))

    def kill(self) -> None:
        """Kills all remaining tasks, and waits until the step has ended."""
        with contextlib.suppress(BrokenPipeError):
            self._srun.stdin.close()
        self._reader.join()
        while not self.exits.empty():
            process, code = self.exits.get()
            process.exit_code = code


def slots() -> list[str]:
    """The node of each of the job's tasks; exits with a one-line error if this is no such job."""
    if "SLURM_TASKS_PER_NODE" not in os.environ:
        fail("this is not a Slurm job: use sbatch Several-Machines/slurm.sbatch EXAMPLE [flags]")
    names = subprocess.run(["scontrol", "show", "hostnames"], stdout=PIPE, text=True)
    counts = re.findall(r"(\d+)(?:\(x(\d+)\))?", os.environ["SLURM_TASKS_PER_NODE"])  # 2,1(x3)
    each = [int(tasks) for tasks, times in counts for _ in range(int(times or 1))]
    return [name for name, tasks in zip(names.stdout.split(), each) for _ in range(tasks)]


class Step:
    """A short command on a node, which may run more than once; a context, for its output's file.

    As a step ends, srun may lose the end of what it printed: see `_server_read` in Slurm's
    `src/api/step_io.c`. It says so, and fails.
    """

    LOST, TRIES = "step_launch_notify_io_failure", 5

    def __init__(self, node: str, words: list):
        one = ["--nodes=1", "--ntasks=1", "--input=none", f"--nodelist={node}"]
        self.node, self.errors = node, ""
        self._command = [*SRUN, *one, *map(str, words)]
        self.stdout = tempfile.NamedTemporaryFile()
        self._start()

    def _start(self) -> None:
        self.stdout.seek(0)
        self.stdout.truncate()
        pipes = {"stdin": subprocess.DEVNULL, "stdout": self.stdout, "stderr": PIPE}
        self._srun = subprocess.Popen(self._command, text=True, **pipes)

    def wait(self) -> int:
        """Waits until all of what it prints is in `stdout`, and returns the exit code."""
        for left in reversed(range(self.TRIES)):
            self.errors = self._srun.communicate()[1]
            lost = self.LOST in self.errors
            if not lost or not left:
                break
            self._start()
        self.exit_code = self._srun.returncode or int(lost)
        self.stdout.seek(0)
        return self.exit_code

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stdout.close()


def on_each(commands: dict[str, list]) -> dict[str, str]:
    """Runs a command on each node, on all at once; returns what each printed.

    Raises:
        SystemExit: with a one-line error, if one fails.
    """
    with contextlib.ExitStack() as stack:
        steps = [stack.enter_context(Step(node, words)) for node, words in commands.items()]
        for step in steps:
            step.wait()
        for step in steps:
            if step.exit_code:
                lines = step.errors.strip().splitlines() or [f"exit code {step.exit_code}"]
                last = ([line for line in lines if line[:5] != "srun:"] or lines)[-1]
                fail(f"node {step.node}: {last.removeprefix('error: ')}")
        return {step.node: step.stdout.read().decode() for step in steps}


def copy(node: str, folder: Path) -> bool:
    """Copies what a node has in a folder, except checkpoints, to here; whether that succeeded."""
    with Step(node, ["tar", "-C", folder, "--exclude=./checkpoints", "-cf", "-", "."]) as packed:
        failed = packed.wait()
        sys.stderr.write(packed.errors)
        return not failed and not subprocess.call(["tar", "-C", folder, "-xf", packed.stdout.name])
