"""Runs an example on the nodes of a Slurm job, as its own run.sh does on one machine.

    sbatch --nodes 3 --ntasks 3 Several-Machines/slurm.sbatch HogWild --steps 2000

The launcher runs on the job's first node, and all tasks in one job step (srun). Without --workers,
every task of the job that is no ps or chief is a worker. With --workers but without --ps, every
task that is no worker or chief is a ps.
"""

import argparse
import itertools
import json
import os
import re
import signal
import sys
from collections import Counter
from pathlib import Path

import host  # finds common/, and checks the packages
import job_steps

from common import fail, flags
from common.launch import launcher, prepare
from common.record.results import now
from common.record.words import counted
from common.told import about, addresses, converters, example
from common.told.parser import Parser

PORT = converters.number(int, "a port, 1 to 65535", lambda value: 0 < value < 65536)


def complete(folder: Path, words: list[str]) -> tuple[list[str], list[str]]:
    """Completes an example's flags for this job.

    Returns:
        The flags, with --workers, --ps and --results, and the node of each of the job's tasks.

    Raises:
        SystemExit: with a one-line error, if a flag is wrong, this is no job, or it has too few
            tasks.
    """
    defaults, text = example.example_of(example.main_script(folder))
    parser = flags.parser(defaults, text, folder)
    parser.usage = f"sbatch Several-Machines/slurm.sbatch {folder.name} [flags]"
    options = parser.parse_args(words)
    for flag in sorted({"--network", "--link_mbit"} & parser.given):
        parser.error(f"{flag}: a run on several machines has no private network; leave it out")
    script = example.chosen_script(folder, options, defaults)
    if example.is_alone(script):
        fail(f"{folder.name} runs in one process with these flags, so it needs no other node: "
             f'use sbatch --wrap "bash {folder.name}/run.sh"')  # fmt: skip
    nodes = job_steps.slots()
    flags.complete(options, example.same_defaults(defaults, script))
    needed = sum(map(len, example.scripts_of(folder, script, options).values()))
    spare = len(nodes) - needed
    if "--workers" not in parser.given and defaults.get("workers", 2) != 1:
        spare = max(spare, 1 - options.workers)
        needed += spare
        words = [*words, "--workers", str(options.workers + spare)]
    elif "--workers" in parser.given and "--ps" not in parser.given and options.ps and spare > 0:
        words = [*words, "--ps", str(options.ps + spare)]
    if needed > len(nodes):
        fail(f"this job has {counted(len(nodes), 'task')}, and {folder.name} with "
             f"these flags needs {needed}: use sbatch --ntasks {needed}")  # fmt: skip
    return words if options.results else [*words, "--results", str(results(folder))], nodes


def results(folder: Path) -> Path:
    """A new results folder, or that of this job if Slurm has put it back into the queue: then the
    run continues from its checkpoint."""
    job = f"slurm-{os.environ['SLURM_JOB_ID']}"
    if "SLURM_RESTART_COUNT" in os.environ:
        for earlier in sorted(folder.glob(f"results/*-{job}"), reverse=True):
            if any(earlier.glob("checkpoints/*.index")):
                return earlier
    return folder / "results" / f"{now()}-{job}"


class Job(launcher.Run):
    """A run whose tasks are a step of this Slurm job."""

    def __init__(self, nodes: list[str], port: int | None, folder: Path, *more):
        self.slots, self.port, self.scheme = nodes, port, folder.name
        super().__init__(folder, *more, private=False)
        self.title += f" on {os.environ['SLURM_JOB_NODELIST']}"

    def addresses(self, scripts: dict[str, list[Path]], private: bool) -> dict[str, list[str]]:
        """Asks each node what it has; exits with a one-line error if they do not fit together."""
        tasks = [job for job, paths in scripts.items() for _ in paths]
        self.nodes = self.slots[: len(tasks)]
        ask = [sys.executable, host.__file__, self.scheme]
        said = job_steps.on_each({node: [*ask, n] for node, n in Counter(self.nodes).items()})
        # A site's prolog may print more lines.
        lines = {node: re.findall(r"^\{.*\}$", text, re.M) for node, text in said.items()}
        found = {node: json.loads(some[-1]) for node, some in lines.items()}
        if wrong := host.difference({f"node {node}": what for node, what in found.items()}):
            fail(wrong)
        free = {node: iter(what["ports"]) for node, what in found.items()}
        if self.port:
            if self.port + len(tasks) > 65536:
                fail(f"--port {self.port}: {len(tasks)} tasks need ports up to "
                     f"{self.port + len(tasks) - 1}: choose a smaller one")  # fmt: skip
            free = dict.fromkeys(free, itertools.count(self.port))
        hosts: dict[str, list[str]] = {job: [] for job in scripts}
        for job, node in zip(tasks, self.nodes):
            address = f"{node}:{next(free[node])}"
            if self.port and addresses.answers(address):
                fail(f"--port: {address} is in use: choose other ports, or leave --port out")
            hosts[job].append(address)
        print("warning: the servers of this run listen on all interfaces of its nodes, without "
              "authentication: run only on a network that you trust", flush=True)  # fmt: skip
        return hosts

    def train(self) -> None:
        """Finds out which nodes see the results folder, and runs the tasks."""
        look = """mkdir -p "$0/logs" && {
            cat "$0/launches.jsonl" 2>&- || find "$0" -maxdepth 1 -type f; }"""
        mine = (self.where / "launches.jsonl").read_text()
        said = job_steps.on_each({node: ["sh", "-c", look, self.where] for node in self.nodes})
        self.apart = [node for node, text in said.items() if text != mine]
        for node in self.apart:
            if said[node]:
                raise launcher.Failed(
                    f"error: on node {node}, --results {self.where} is another folder, which is "
                    "not empty: use a new one",
                    2,
                )
        if self.apart:
            print(f"not on a shared disk: {self.where} of {', '.join(self.apart)}; what is written "
                  "there is not shown now, but copied at the end", flush=True)  # fmt: skip
        super().train(job_steps.Tasks(self.tasks, self.nodes, self.apart, self.env))

    def write(self) -> None:
        """Copies the files of the nodes that do not share the results folder; then as always."""
        for node in self.apart:
            if not job_steps.copy(node, self.where):
                raise launcher.Failed(f"error: cannot copy {self.where} from node {node}", 1)
        super().write()


def main() -> int:
    """Runs an example; returns the exit code."""
    parser = Parser(
        usage="sbatch Several-Machines/slurm.sbatch [--port P] EXAMPLE [its flags]",
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )  # fmt: skip
    parser.add_argument("--port", type=PORT, metavar="P",
                        help="the tasks use ports P, P+1, ... (default: free ones)")  # fmt: skip
    parser.add_argument("words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until the launcher has its own handler
    ours = parser.parse_args()
    if not ours.words:
        parser.error("name an example, such as HogWild")
    folder = host.ROOT / ours.words[0]
    words, nodes = complete(folder, ours.words[1:])

    def make(folder: Path, script: Path, options, arguments: list[str]) -> Job:
        prepare.fetch(options, own=about.read(folder).downloads)
        return Job(nodes, ours.port, folder, script, options, arguments)

    return launcher.main([str(folder), *words], make)


if __name__ == "__main__":
    sys.exit(main())
