"""The launcher: `python -m common.launch FOLDER [flags]` starts all tasks of an example on this
machine, shows their progress, restarts killed tasks, writes the results and leaves nothing behind.
"""

import json
import os
import queue
import signal
import sys
import time
from pathlib import Path

from common import datasets, fail, flags
from common.launch import addresses, network, prepare, record
from common.launch.example import example_of
from common.launch.processes import Group, Process, describe_exit
from common.training.results import create, now, write


class Stopped(BaseException):
    """A signal asks the launcher to stop; `except Exception` in a library does not catch it."""


class Failed(Exception):
    """The run cannot be completed. Holds the last message on the screen and the exit code."""


def main(arguments: list[str]) -> int:
    """Runs an example. Returns the exit code: 0 when every worker finished and all is written."""

    def stop(number, frame):
        raise Stopped(signal.Signals(number))

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    try:
        run = checked(arguments)
        run.train()
        run.write()
    except Failed as failed:
        message, code = failed.args
        print(message, flush=True)
        return code
    except Stopped as stopped:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        (number,) = stopped.args
        print(f"\nstopped by {number.name}; nothing is left running", flush=True)
        return 128 + number
    return 0


def checked(arguments: list[str]) -> "Run":
    """Checks everything before any task starts; removes an earlier run's results last."""
    folder = Path(arguments[0]).resolve()
    script = next((p for n in ("worker.py", "train.py") if (p := folder / n).is_file()), None)
    if script is None:
        fail(f"{folder} has neither worker.py nor train.py: it is not an example folder")
    defaults, description = example_of(script)
    text = f"{description}\n\nbash {folder.name}/run.sh [flags]"
    parser = flags.parser(defaults, text, folder)
    options = parser.parse_args(arguments[1:])
    flags.check(options, defaults, parser)
    if options.results is None:
        options.results = str(folder / "results" / now())
    create(Path(options.results, "logs"))
    if options.checkpoint_dir is None:
        options.checkpoint_dir = str(Path(options.results, "checkpoints"))
    create(options.checkpoint_dir, "--checkpoint_dir")
    prepare.fetch(options)
    private = network.choose(options.network, print) == "private"
    prepare.check(options)
    record.clear(Path(options.results))
    return Run(folder, script, options, arguments[1:], private)


def _same_defaults(worker: Path, script: Path) -> None:
    """`--help` shows those of worker.py, but this script has its own."""
    (shown, _), (own, _) = example_of(worker), example_of(script)
    for name in sorted((shown.keys() | own.keys()) - {"workers", "ps", "threads", "mode"}):
        if shown.get(name) != own.get(name):
            fail(f'{script}: DEFAULTS["{name}"] must be as in worker.py')


class Run:
    """One run: its processes from the first start to the last line."""

    def __init__(self, folder: Path, script: Path, options, arguments: list[str], private: bool):
        self.options, self.folder, self.where = options, folder, Path(options.results)
        self.replicas = 1  # in each worker process
        mode = "threads" if getattr(options, "threads", None) else getattr(options, "mode", "")
        if mode in ("threads", "towers"):
            self.replicas = options.workers
        if mode in ("threads", "towers", "synchronous"):
            script = folder / f"{mode}.py"
            _same_defaults(folder / "worker.py", script)
        processes = options.workers // self.replicas
        ports = network.free_ports(options.ps + processes, private)
        self.hosts = [f"localhost:{port}" for port in ports]
        ps_hosts, worker_hosts = self.hosts[: options.ps], self.hosts[options.ps :]
        fixed = ["--results", options.results, "--checkpoint_dir", options.checkpoint_dir]
        if options.ps:
            fixed += ["--ps_hosts", ",".join(ps_hosts), "--worker_hosts", ",".join(worker_hosts)]

        def task(job: str, index: int, path: Path) -> Process:
            own = ["--job_name", job, "--task_index", str(index)]
            command = [sys.executable, str(path), *arguments, *fixed, *own]
            return Process(job, index, command, self.where / "logs" / f"{job}-{index}.log")

        self.ps = [task("ps", i, folder / "ps.py") for i in range(options.ps)]
        self.workers = [task("worker", i, script) for i in range(processes)]
        self.tasks = self.ps + self.workers
        self.env = os.environ | {
            "PYTHONPATH": os.pathsep.join(
                [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
            ),
            "PYTHONUNBUFFERED": "1",
        }

    def train(self) -> None:
        """From the first start until every process is gone, whatever happens in between."""
        self.group = Group()
        try:
            self.deadline = time.monotonic() + self.options.timeout
            for task in self.tasks:
                self.group.start(task, self.env)
            from common.launch import screen  # after the tasks: importing it takes a while

            with screen.Screen(self.where, self.options) as shown:
                self._watch(shown)
        finally:
            handlers = [signal.signal(s, signal.SIG_IGN) for s in (signal.SIGINT, signal.SIGTERM)]
            self.group.kill()
            for number, handler in zip((signal.SIGINT, signal.SIGTERM), handlers):
                signal.signal(number, handler)

    def _watch(self, shown) -> None:
        """Returns when all tasks have ended well; raises `Failed` when the run cannot."""
        while any(task.exit_code is None for task in self.tasks):
            if time.monotonic() > self.deadline:
                if all(task.exit_code == 0 for task in self.workers):
                    return
                raise Failed(self._timed_out(), 1)
            try:
                task, code = self.group.exits.get(timeout=0.2)
            except queue.Empty:
                shown.update()
                continue
            task.exit_code = code
            if task.exit_code == 0:
                if all(worker.exit_code == 0 for worker in self.workers):
                    # A ps ends when the workers have left it; one that was restarted after they
                    # left would wait for ever.
                    self.deadline = min(self.deadline, time.monotonic() + 5)
                continue
            if task.exit_code == 2:
                raise Failed(task.error_line() or task.last_lines(), 2)
            how = f"{task.name} {describe_exit(task.exit_code)}"
            if task.exit_code > 0:
                log = record.shown(task.log)
                raise Failed(f"{how}; {log} ends with\n\n{task.last_lines()}", 1)
            if task.restarts == self.options.max_restarts:
                raise Failed(
                    f"{record.shown(task.log)} ends with\n\n{task.last_lines()}\n\nerror: {how}, "
                    f"and --max_restarts {self.options.max_restarts} is used up",
                    1,
                )
            task.restarts += 1
            shown.say(f"{how}: restarted ({task.restarts} of {self.options.max_restarts})")
            self.group.start(task, self.env)
        shown.update(last=True)

    def _timed_out(self) -> str:
        logs = self.where / "logs"
        after = f"error: after --timeout {self.options.timeout:g} s"
        for task, address in zip(self.tasks, self.hosts, strict=True):
            if self.ps and task.exit_code is None and not addresses.answers(address):
                log = record.shown(task.log)
                return f"{after} {task.name} had not come up at {address}; see {log}"
        return f"{after} the run had not finished: give it more time, or see {record.shown(logs)}"

    def write(self) -> None:
        """summary.json and curves.png, from what the tasks left; then the screen's last lines."""
        from common.launch import plots, screen

        tasks = [
            {"job": t.job, "index": i, "exit_code": t.exit_code, "restarts": t.restarts}
            for t in self.tasks
            for i in (range(self.replicas) if t.job == "worker" and not t.index else [t.index])
        ]
        size = datasets.describe(self.options).size if datasets.is_known(self.options) else 0
        found = record.summarise(self.where, self.folder.name, vars(self.options), tasks, size)
        plots.curves(self.where, found)
        text = json.dumps(found, indent=2) + "\n"
        write(self.where / "summary.json", lambda file: file.write(text.encode()))
        screen.table(found, self.where)
