"""The launcher: `python -m common.launch FOLDER [flags]` starts all tasks of an example on this
machine, shows their progress, restarts killed tasks, writes the results and leaves nothing behind.
"""

import os
import queue
import signal
import sys
import time
from pathlib import Path

from common import flags
from common.launch import finish, link, network, prepare
from common.launch.folder import Folder
from common.launch.processes import Group, Process, describe_exit
from common.page.shown import Shown
from common.record import results
from common.record.results import now
from common.record.words import counted
from common.told import about, addresses, example, mistakes


class Stopped(BaseException):
    """A signal told the launcher to stop. A library's `except Exception` does not catch this."""


class Failed(Exception):
    """The run cannot be completed. Holds the final message and the exit code."""


def main(arguments: list[str], make=None) -> int:
    """Runs an example: on this machine, unless `make` returns another `Run` than `here` does.
    Returns the exit code: 0 if all workers finished, with all results."""

    def stop(number, frame):
        raise Stopped(signal.Signals(number))

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    try:
        run = checked(arguments, make or here)
        run.train()
        run.write()
    except Failed as failed:
        message, code = failed.args
        print(message, flush=True)
        if code == 2:
            run.results.discard(message)
        return code
    except Stopped as stopped:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        (number,) = stopped.args
        print(f"\nstopped by {number.name}; nothing is left running", flush=True)
        return 128 + number
    return 0


def checked(arguments: list[str], make) -> "Run":
    """Checks everything before it starts a task or creates a folder."""
    folder = Path(arguments[0]).resolve()
    defaults, description = example.example_of(example.main_script(folder))
    parser = flags.parser(defaults, f"{description}\n\nbash {folder.name}/run.sh [flags]", folder)
    options = parser.parse_args(arguments[1:])
    script = example.chosen_script(folder, options, defaults)
    defaults = example.same_defaults(defaults, script)
    flags.complete(options, defaults)
    mistakes.check(options, defaults, parser)
    prepare.packages(folder)
    if options.results is None:
        options.results = str(folder / "results" / now())
    prepare.check(options)
    return make(folder, script, options, arguments[1:])


def here(folder: Path, script: Path, options, arguments: list[str]) -> "Run":
    prepare.machine(options)
    prepare.fetch(options, own=about.read(folder).downloads)
    private = network.choose(options.network, print, options.link_mbit) == "private"
    return Run(folder, script, options, arguments, private)


class Run:
    """One run, from the start of its processes to the final table."""

    def __init__(self, folder: Path, script: Path, options, arguments: list[str], private: bool):
        client, alone = example.job_of(script), example.is_alone(script)
        self.replicas = options.workers if alone else 1  # in each worker process
        scripts = example.scripts_of(folder, script, options)
        hosts = self.addresses(scripts, private)
        self.hosts = [address for listed in hosts.values() for address in listed]
        self.options, self.folder = options, folder
        self.results = Folder(options, folder.name)
        self.where = self.results.path
        self.meter = link.Meter(self.where, private)
        self.page = Shown(self.where, options.open)
        fixed = ["--results", options.results, "--checkpoint_dir", options.checkpoint_dir]
        for job, listed in hosts.items():
            if listed and not alone:
                fixed += [f"--{job}_hosts", ",".join(listed)]

        def task(job: str, index: int, path: Path) -> Process:
            own = ["--job_name", job, "--task_index", str(index)]
            command = self.command(job, index, path, [*arguments, *fixed, *own])
            return Process(job, index, command, self.where / "logs" / f"{job}-{index}.log")

        self.tasks = [
            task(job, k, path) for job, paths in scripts.items() for k, path in enumerate(paths)
        ]
        self.clients = [task for task in self.tasks if task.job == client]
        replica = "thread" if getattr(options, "threads", None) else "worker"
        title = f"{counted(options.workers, replica)}, {options.ps} ps"
        if client == "chief":
            title += ", 1 chief"
        self.about = about.read(folder)
        self.title = self.about.title(options, title)
        if getattr(options, "compute_ms", None):
            self.title += f"; a mini-batch takes at least {options.compute_ms:g} ms, asleep"
        root, others = str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")
        paths = os.pathsep.join(filter(None, [root, others]))
        self.env = os.environ | {"PYTHONPATH": paths, "PYTHONUNBUFFERED": "1"}

    def addresses(self, scripts: dict[str, list[Path]], private: bool) -> dict[str, list[str]]:
        """Job -> `host:port` of each of its tasks."""
        ports = iter(network.free_ports(sum(map(len, scripts.values())), private))
        return {job: [f"localhost:{next(ports)}" for _ in tasks] for job, tasks in scripts.items()}

    def command(self, job: str, index: int, script: Path, words: list[str]) -> list[str]:
        return [sys.executable, str(script), *words]

    def train(self, group=None) -> None:
        """Starts all tasks, watches them, and leaves no process behind, whatever happens."""
        self.group = group or Group()
        try:
            self.deadline = time.monotonic() + self.options.timeout
            for task in self.tasks:
                self.group.start(task, self.env)
            from common.launch import screen  # late: rich takes long; the tasks start first

            with screen.Screen(self.results, self.options, self.title, self.about) as shown:
                try:
                    self._watch(shown)
                finally:
                    shown.update(last=True)
        finally:
            handlers = [signal.signal(s, signal.SIG_IGN) for s in (signal.SIGINT, signal.SIGTERM)]
            self.group.kill()
            for number, handler in zip((signal.SIGINT, signal.SIGTERM), handlers):
                signal.signal(number, handler)

    def _watch(self, shown) -> None:
        """Returns when all tasks have succeeded; raises `Failed` if the run cannot succeed."""
        while any(task.exit_code is None for task in self.tasks):
            self.meter.note()
            self.page.note(shown.say)
            if time.monotonic() > self.deadline:
                if self.results.are_written() or self._clients_left():
                    return
                raise Failed(self._timed_out(), 1)
            try:
                task, code = self.group.exits.get(timeout=0.2)
            except queue.Empty:
                shown.update()
                for task in self.tasks:
                    if task.exit_code is None and task.stands_still():
                        shown.say(
                            f"{task.name} has been suspended for 10 s: resume it with "
                            f"kill -CONT {task.popen.pid}"
                        )
                continue
            task.exit_code = code
            if code == 0 or (code < 0 and self.results.are_written()):
                if code < 0 or self._clients_left():
                    # A server ends when all clients have left it. One that restarted after that,
                    # or that a killed client never left, would wait forever.
                    self.deadline = min(self.deadline, time.monotonic() + 5)
                continue
            if sentence := task.sentence():
                raise Failed(sentence, 2)
            reason = describe_exit(task.exit_code)
            how = f"{task.name} {reason}"
            if task.exit_code > 0:
                log = results.shown(task.log)
                raise Failed(f"error: {how}; {log} ends with:\n\n{task.last_lines()}", 1)
            if task.restarts == self.options.max_restarts:
                raise Failed(
                    f"{results.shown(task.log)} ends with:\n\n{task.last_lines()}\n\nerror: {how}, "
                    f"and --max_restarts {self.options.max_restarts} allows no more restarts",
                    1,
                )
            task.restarts += 1
            task.restart_reasons.append(reason)
            shown.say(f"{how}: restarted ({task.restarts} of {self.options.max_restarts})")
            self.group.start(task, self.env)

    def _clients_left(self) -> bool:
        return all(client.exit_code == 0 for client in self.clients)

    def _timed_out(self) -> str:
        logs = self.where / "logs"
        after = f"error: timed out after {self.options.timeout:g} s (--timeout):"
        for task, address in zip(self.tasks, self.hosts):
            if len(self.tasks) > 1 and task.exit_code is None and not addresses.answers(address):
                log = results.shown(task.log)
                return f"{after} {task.name} does not answer at {address}; see {log}"
        return f"{after} the run is not finished; give it more time, or see {results.shown(logs)}"

    def write(self) -> None:
        """Writes summary.json and curves.png from what the tasks wrote, and prints the table."""
        self.meter.note()
        tasks = [
            {"job": t.job, "index": i, "exit_code": t.exit_code, "restarts": t.restarts,
             "restart_reasons": t.restart_reasons}
            for t in self.tasks
            for i in (range(self.replicas) if t.job == "worker" and not t.index else [t.index])
        ]  # fmt: skip
        finish.write(self.where, self.folder, vars(self.options), tasks)
        self.page.write(print)
