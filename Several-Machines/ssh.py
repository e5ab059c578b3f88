"""Runs an example on several hosts through ssh, as its own run.sh does on one machine.

    bash Several-Machines/run.sh --hosts a,b,c HogWild --workers 2

The launcher, here, starts a `proxy.py` for each task; that runs the task on a host. Each host has
its own clone of the collection, at the same path.
"""

import argparse
import contextlib
import json
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import connection
import host as this

from common import fail
from common.launch import launcher
from common.told import converters, example
from common.told.parser import Parser

ROOT = Path(__file__).resolve().parents[1]


class Host:
    """A host of the run: which tasks it gets, and a connection that lasts as long as the run."""

    def __init__(self, name: str, ssh: str):
        self.name, self.ssh, self.tasks = name, ssh, []
        self.keeper = self.found = None
        try:
            asked = subprocess.run([*shlex.split(ssh), "-G", name], capture_output=True, text=True)
        except (OSError, ValueError) as error:  # not there; a quotation mark is missing
            fail(f"cannot run {ssh} ({error}): install an ssh client, or name it in --ssh")
        found = [line.split()[1] for line in asked.stdout.splitlines() if line[:9] == "hostname "]
        if not found:
            fail(f"host {name}: {said(asked.stderr)}")
        # What the other tasks call it: an alias in ~/.ssh/config stands for an address.
        self.address = f"[{found[0]}]" if ":" in found[0] else found[0]

    def connect(self, at: str, folder: str) -> None:
        """Asks the host to describe itself and to keep a folder for the run."""
        words = ["keep", folder, len(self.tasks)]
        how = {"stderr": subprocess.STDOUT, "start_new_session": True}  # Ctrl-C is for us
        self.keeper = connection.connect(self.ssh, self.name, at, words, **how)

    def answer(self) -> None:
        """Reads the description; exits with a one-line error if there is none."""
        lines = []
        for line in self.keeper.stdout:
            if line.startswith(b"{"):
                self.found = json.loads(line)
                self.ports = iter(self.found["ports"])
                return
            lines.append(line.decode(errors="replace"))
            if lines[-1].startswith("Setting up "):
                print(f"host {self.name}: {lines[-1]}", end="", flush=True)
        reason = said("".join(lines))
        if self.keeper.wait() == 255:
            fail(f"host {self.name} cannot be reached: {reason}: check `ssh {self.name} true`")
        fail(f"host {self.name}: {reason}")


def said(text: str) -> str:
    """What a program said at last, without `error: ` and a full stop."""
    last = text.strip().rpartition("\n")[2].strip()
    return last.removeprefix("error: ").rstrip(".") or "it did not say why"


class Hosts:
    """All hosts of a run."""

    def __init__(self, names: list[str], ssh: str, at: str):
        self.at, self.all = at, [Host(name, ssh) for name in names]
        for k, host in enumerate(self.all):
            for other in self.all[:k]:
                if other.address == host.address:
                    fail(f"--hosts: {other.name} and {host.name} are the same host, "
                         f"{host.address}: name each host once")  # fmt: skip

    def make(self, folder: Path, script: Path, options, arguments: list[str]) -> "Remote":
        """Checks all hosts; returns the run. Exits with a one-line error if one is not ready."""
        if folder.parent != ROOT:
            fail(
                f"{folder} is not in {ROOT}, where the hosts look for it: copy {ROOT.name}/"
                f"Several-Machines to {folder.parent}, copy that folder to the hosts, and start "
                "Several-Machines/run.sh there"
            )
        if options.link_mbit or options.network == "private":
            flag = "--link_mbit" if options.link_mbit else "--network private"
            fail(f"{flag}: a run on several hosts has no private network; leave it out")
        if example.is_alone(script):
            fail(f"{folder.name} runs in one process with these flags, so it needs no other host: "
                 f"use bash {folder.name}/run.sh")  # fmt: skip
        if any(Path(options.results).glob("*")):
            fail(f"--results {options.results} is not empty: a run on several hosts needs a new "
                 "folder; to continue an earlier one, name its --checkpoint_dir")  # fmt: skip
        # Like cards: one task for each host in turn.
        scripts = example.scripts_of(folder, script, options)
        tasks = [(job, k) for job in ("ps", "chief", "worker") for k in range(len(scripts[job]))]
        self.of = {task: self.all[i % len(self.all)] for i, task in enumerate(tasks)}
        for task, host in self.of.items():
            host.tasks.append(task)
        used = [host for host in self.all if host.tasks]
        for host in used:
            host.connect(self.at, folder.name)
        # Now: while one host sets up its .venv, the others must not hear silence.
        connection.keep_alive(*[host.keeper for host in used])
        for host in used:
            host.answer()
            if len(used) > 1 and host.address.startswith(("localhost", "127.", "[::1]")):
                fail(f"--hosts: the others cannot reach {host.name} at {host.address}: use a name "
                     "that means the same machine everywhere")  # fmt: skip
        found = {"this machine": this.describe(folder.name, 1)}
        if wrong := this.difference(found | {f"host {host.name}": host.found for host in used}):
            fail(wrong)
        print("warning: the servers of this run listen on all interfaces of its hosts, without "
              "authentication: run only on a network that you trust")  # fmt: skip
        print("; ".join(f"on {host.name}: " + (", ".join(f"{job} {k}" for job, k in host.tasks)
                                               or "no task") for host in self.all))  # fmt: skip
        return Remote(self, folder, script, options, arguments)

    def close(self) -> None:
        """Waits until each host has ended its tasks and removed its files, but not for hosts that
        cannot be reached."""
        asked = [host for host in self.all if host.keeper]
        for host in asked:
            with contextlib.suppress(BrokenPipeError):  # it has ended
                host.keeper.stdin.close()
        end = time.monotonic() + 10
        for host in asked:
            try:
                host.keeper.wait(max(0, end - time.monotonic()) if host.found else 0)
            except subprocess.TimeoutExpired:
                host.keeper.kill()


class Remote(launcher.Run):
    """A run whose tasks are on other hosts."""

    def __init__(self, hosts: Hosts, folder: Path, script: Path, options, arguments: list[str]):
        self.remote, self.kept = hosts, options.checkpoint_dir or ""
        options.checkpoint_dir = None  # the user's is on the hosts
        if any(word.partition("=")[0] == "--data" for word in arguments):
            arguments = [*arguments, "--data", options.data]  # an absolute path
        super().__init__(folder, script, options, arguments, private=False)
        options.checkpoint_dir = self.kept or options.checkpoint_dir
        self.hosts = []  # after a timeout: a firewall may keep only this machine from asking them

    def addresses(self, scripts: dict[str, list[Path]], private: bool) -> dict[str, list[str]]:
        of = self.remote.of
        return {
            job: [f"{of[job, k].address}:{next(of[job, k].ports)}" for k in range(len(paths))]
            for job, paths in scripts.items()
        }

    def command(self, job: str, index: int, script: Path, words: list[str]) -> list[str]:
        host = self.remote.of[job, index]
        proxy = [sys.executable, str(Path(__file__).with_name("proxy.py")), host.ssh, host.name]
        proxy += [self.remote.at, str(self.where), host.found["folder"], f"{job}-{index}"]
        return [*proxy, self.kept, str(script.relative_to(ROOT)), *words]

    def train(self) -> None:
        try:
            super().train()
        finally:
            self.remote.close()


def main() -> int:
    """Runs an example; returns the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until the launcher has its own handler
    parser = Parser(
        usage="bash Several-Machines/run.sh --hosts A,B,... EXAMPLE [its flags]",
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )  # fmt: skip
    add = parser.add_argument
    add("--hosts", metavar="A,B,...", required=True, type=converters.listed(str),
        help="where the tasks run: names that ssh knows")  # fmt: skip
    add("--at", metavar="DIR", default=str(ROOT),
        help="the collection's folder on the hosts (default: as here)")  # fmt: skip
    add("--ssh", metavar="COMMAND", default="ssh", help="such as 'ssh -p 2022' (default: ssh)")
    add("example", metavar="EXAMPLE", help="a folder, such as HogWild")
    add("flags", nargs=argparse.REMAINDER, help=argparse.SUPPRESS).required = False
    flags = parser.parse_args()
    if not all(name and name[0] != "-" for name in flags.hosts):
        parser.error(f"--hosts: must be names separated by commas, not {','.join(flags.hosts)!r}")
    hosts = Hosts(flags.hosts, flags.ssh, flags.at)
    try:
        return launcher.main([str(ROOT / flags.example), *flags.flags], hosts.make)
    finally:
        hosts.close()


if __name__ == "__main__":
    sys.exit(main())
