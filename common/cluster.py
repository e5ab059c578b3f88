"""Who am I, and who are the others? A task's name, its cluster and its server's settings."""

import argparse
import contextlib
import dataclasses
import functools
import os
import sys
from pathlib import Path

from common import fail, quick_import
from common import flags as command_line
from common.launch import addresses
from common.launch.converters import number
from common.training import results

with quick_import():
    import tensorflow.compat.v1 as tf

PS_HOSTS = "localhost:2222"
WORKER_HOSTS = "localhost:2223,localhost:2224"

# gRPC would send even localhost traffic through a proxy and hang there.
for _name in ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy"):
    os.environ.pop(_name, None)
    os.environ.pop(_name.upper(), None)


@dataclasses.dataclass(frozen=True)
class Task:
    """One process of the cluster.

    Attributes:
        job: `ps` or `worker`.
        index: this task's number within its job, from 0. Worker 0 is the chief.
        hosts: job -> its tasks' `host:port`; empty where nothing is distributed.
        flags: the command line.
    """

    job: str
    index: int
    hosts: dict[str, list[str]]
    flags: argparse.Namespace

    @classmethod
    def from_flags(cls, job: str, defaults: dict | None = None) -> "Task":
        """Reads the command line, then `TF_CONFIG`; without either, the cluster on localhost.

        Args:
            job: what the calling script is, `ps` or `worker`.
            defaults: an example's own defaults; a ps reads them from the `worker.py` beside it.

        A bad flag or cluster ends the process with one sentence and exit code 2.
        """
        folder = Path(sys.argv[0]).resolve().parent
        if defaults is None:
            defaults, _ = command_line.example_of(folder / "worker.py")
        defaults = command_line.in_folder(defaults, folder)
        parser = command_line.parser(defaults, f"One {job} of {folder.name}.")
        workers = WORKER_HOSTS.split(",")[0] if defaults.get("workers") == 1 else WORKER_HOSTS
        index = number(int, 0)
        parser.add_argument("--job_name", choices=("ps", "worker"), help=f"(default: {job})")
        parser.add_argument("--task_index", type=index, metavar="K", help="(default: 0)")
        for key, hosts in (("ps", PS_HOSTS), ("worker", workers)):
            text = f"host:port,... (default: {hosts})"
            parser.add_argument(f"--{key}_hosts", metavar="HOSTS", help=text)
        parser.usage = f"{sys.argv[0]} [flags]"
        flags = parser.parse_args()
        if defaults.get("ps", 1) == 0:
            task = cls("worker", 0, {}, flags)
        else:
            task = cls._find(job, {"ps": PS_HOSTS.split(","), "worker": workers.split(",")}, flags)
            flags.workers, flags.ps = len(task.hosts["worker"]), len(task.hosts["ps"])
        command_line.check(flags, defaults, parser)
        if flags.results is None:
            flags.results = str(folder / "results" / f"{results.now()}-{job}-{task.index}")
        if flags.checkpoint_dir is None:
            flags.checkpoint_dir = str(Path(flags.results) / "checkpoints")
        # All sessions of a process share the threads that the first one asks for; it may be one of
        # TensorFlow's own, which looks here. It is too late where TensorFlow was used before.
        threads = task.config.intra_op_parallelism_threads
        with contextlib.suppress(RuntimeError):
            tf.config.threading.set_intra_op_parallelism_threads(threads)
        return task

    @classmethod
    def _find(cls, job, hosts, flags):
        name, index = job, 0
        said = {"ps": flags.ps_hosts, "worker": flags.worker_hosts}
        if os.environ.get("TF_CONFIG") and None in (*said.values(), flags.task_index):
            from common.launch import tf_config

            hosts, name, index = tf_config.parse(os.environ["TF_CONFIG"], job)
        hosts |= {key: value.split(",") for key, value in said.items() if value is not None}
        name = flags.job_name or name
        index = index if flags.task_index is None else flags.task_index
        if name != job:
            fail(f"this script is the {job}'s, but the task is a {name}: start {name}.py for it")
        for key, listed in hosts.items():
            for address in listed:
                host, _, port = address.rpartition(":")
                if not (host and port.isdigit() and 0 < int(port) < 65536):
                    source = "TF_CONFIG" if said[key] is None else f"--{key}_hosts"
                    fail(f"{source}: {address!r} is not host:port")
        everyone = [address for listed in hosts.values() for address in listed]
        for address in everyone:
            if everyone.count(address) > 1:
                fail(f"two tasks have the same address {address}: give each its own")
        if index >= len(hosts[name]):
            source = "TF_CONFIG" if flags.task_index is None else "--task_index"
            fail(f"{source}: there is no {name} {index}, the last one is {len(hosts[name]) - 1}")
        return cls(name, index, hosts, flags)

    @property
    def name(self) -> str:
        return f"{self.job} {self.index}"

    @property
    def address(self) -> str:
        return self.hosts[self.job][self.index]

    @property
    def is_chief(self) -> bool:
        """The chief initialises the global parameters, saves checkpoints and evaluates."""
        return self.job == "worker" and self.index == 0

    @property
    def workers(self) -> int:
        return len(self.hosts["worker"]) if self.hosts else 1

    @property
    def cluster(self) -> tf.train.ClusterSpec:
        return tf.train.ClusterSpec(self.hosts)

    @property
    def device(self) -> str:
        """This task's own device."""
        return f"/job:{self.job}/task:{self.index}" if self.hosts else ""

    @functools.cached_property
    def config(self) -> tf.ConfigProto:
        """For this task's server and its sessions; an example may change it before they are made.

        The device filters keep a session from waiting for workers that it does not need. The
        cores of this machine are shared among the cluster's tasks, or threads, that run on it.
        """
        config = tf.ConfigProto()
        config.gpu_options.allow_growth = True
        config.allow_soft_placement = True  # what has no GPU version runs on the CPU
        if self.job == "ps":
            config.device_count["GPU"] = 0  # its memory is the machine's
        tasks_here = getattr(self.flags, "threads", None) or 1
        if self.hosts:
            everyone = [address for addresses in self.hosts.values() for address in addresses]
            here = self.address.rpartition(":")[0]
            tasks_here = sum(address.rpartition(":")[0] == here for address in everyone)
            config.device_filters.extend(["/job:ps"] if self.job == "worker" else [])
            config.device_filters.append(self.device)
        config.intra_op_parallelism_threads = max(1, cores() // tasks_here)
        config.inter_op_parallelism_threads = max(1, cores() // tasks_here)
        config.experimental.disable_thread_spinning = True  # a core that waits serves another task
        # Each graph that a session runs is optimised first; for small ones that takes longer than
        # it saves. For large models try it without this line.
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        if self.job == "worker" and self.index in (self.flags.delay or {}):
            config.inter_op_parallelism_threads += 1  # one of them sleeps
        return config

    def wait_for_ps(self) -> None:
        """Returns when every parameter server accepts connections.

        Ends the process with a sentence naming the missing one after `--timeout` seconds.
        """
        for index, address in enumerate(self.hosts.get("ps", [])):
            addresses.wait_for(f"ps {index}", address, self.flags.timeout)


def cores() -> int:
    """The processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
