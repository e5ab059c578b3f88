"""Who am I, and who are the others? A task's name, its cluster and its server's settings."""

import argparse
import atexit
import contextlib
import dataclasses
import functools
import gc
import os
import sys
from pathlib import Path

from common import fail
from common import flags as command_line
from common.launch import addresses
from common.launch import converters as to
from common.training import results

gc.disable()  # it takes a quarter of this import's time, and most of the time to exit
import tensorflow.compat.v1 as tf

gc.freeze()
gc.enable()
atexit.register(gc.freeze)

HOSTS = {"ps": ["localhost:2222"], "worker": ["localhost:2223", "localhost:2224"]}

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
            from common.launch.example import example_of

            defaults, _ = example_of(folder / "worker.py")
        parser = command_line.parser(defaults, f"One {job} of {folder.name}.", folder)
        parser.usage = f"{sys.argv[0]} [flags]"
        one = defaults.get("workers") == 1
        hosts = HOSTS | {"worker": HOSTS["worker"][:1]} if one else HOSTS
        parser.add_argument("--job_name", choices=("ps", "worker"), help=f"(default: {job})")
        parser.add_argument("--task_index", type=to.WHOLE, metavar="K", help="(default: 0)")
        for key, listed in hosts.items():
            text = f"host:port,... (default: {','.join(listed)})"
            parser.add_argument(f"--{key}_hosts", metavar="HOSTS", type=to.listed(str), help=text)
        flags = parser.parse_args()
        if defaults.get("ps", 1) == 0:
            task = cls("worker", 0, {}, flags)
        else:
            task = cls._find(job, hosts, flags)
            flags.workers, flags.ps = len(task.hosts["worker"]), len(task.hosts["ps"])
        command_line.check(flags, defaults, parser)
        name = f"{results.now()}-{job}-{task.index}"
        flags.results = flags.results or str(folder / "results" / name)
        flags.checkpoint_dir = flags.checkpoint_dir or str(Path(flags.results) / "checkpoints")
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
        hosts = hosts | {key: listed for key, listed in said.items() if listed is not None}
        name = flags.job_name or name
        index = index if flags.task_index is None else flags.task_index
        if name != job:
            fail(f"this script is the {job}'s, but the task is a {name}: start {name}.py for it")
        everyone = [(key, address) for key, listed in hosts.items() for address in listed]
        for k, (key, address) in enumerate(everyone):
            host, _, port = address.rpartition(":")
            if not (host and port.isdigit() and 0 < int(port) < 65536):
                source = "TF_CONFIG" if said[key] is None else f"--{key}_hosts"
                fail(f"{source}: {address!r} is not host:port")
            if address in [other for _, other in everyone[:k]]:
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
            everyone = [
                address.rpartition(":")[0] for job in self.hosts.values() for address in job
            ]
            tasks_here = everyone.count(self.address.rpartition(":")[0])
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
