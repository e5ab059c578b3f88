"""Who am I, and who are the others? A task's name, its cluster and its server's settings."""

import argparse
import atexit
import contextlib
import dataclasses
import functools
import gc
import math
import os
import sys
from pathlib import Path

from common import fail
from common import flags as command_line
from common.record import results
from common.told import by_hand, example
from common.told import converters as to

# Keras takes a third of TensorFlow's import time. With this set, it loads on first use.
_ours = "TF_USE_LEGACY_KERAS" not in os.environ
if _ours:
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
gc.disable()  # it takes a quarter of the import time, and most of the exit time
import tensorflow.compat.v1 as tf

if _ours:
    del os.environ["TF_USE_LEGACY_KERAS"]
gc.freeze()
gc.enable()
atexit.register(gc.freeze)

HOSTS = {
    "ps": ["localhost:2222"],
    "worker": ["localhost:2223", "localhost:2224"],
    "chief": ["localhost:2225"],
}

# gRPC would send even localhost traffic through a proxy, and then hang.
for _name in ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy"):
    os.environ.pop(_name, None)
    os.environ.pop(_name.upper(), None)


@dataclasses.dataclass(frozen=True)
class Task:
    """One process of the cluster.

    Attributes:
        job: `ps`, `worker` or `chief`.
        index: this task's number within its job, from 0. Without a job `chief`, worker 0 is it.
        hosts: job -> its tasks' `host:port`; empty if nothing is distributed.
        flags: the command line.
    """

    job: str
    index: int
    hosts: dict[str, list[str]]
    flags: argparse.Namespace

    @classmethod
    def from_flags(cls, job: str, defaults: dict | None = None) -> "Task":
        """Reads the command line, then `TF_CONFIG`; default: a cluster on localhost.

        Args:
            job: the job of the calling script: `ps`, `worker` or `chief`.
            defaults: the example's own defaults; without them, those of the folder's main script,
                `chief.py` or `worker.py`.

        Exits with a one-line error and code 2 on a bad flag or cluster.
        """
        folder = Path(sys.argv[0]).resolve().parent
        main = Path(sys.argv[0])
        if defaults is None:
            main = example.main_script(folder)
            defaults, _ = example.example_of(main)
        if job == "chief" and not defaults.get("chief"):
            fail(f'DEFAULTS of {main} must say "chief": 1, since run.sh starts a chief only then')
        parser = command_line.parser(defaults, f"Runs one {job} of {folder.name}.", folder)
        parser.usage = f"{sys.argv[0]} [flags]"
        hosts = HOSTS | {"worker": HOSTS["worker"][: defaults.get("workers", 2)]}
        if not defaults.get("chief"):
            del hosts["chief"]
        if defaults.get("ps", 1) is None:
            del hosts["ps"]
        parser.add_argument("--job_name", choices=tuple(hosts), help=f"(default: {job})")
        parser.add_argument("--task_index", type=to.WHOLE, metavar="K", help="(default: 0)")
        for key, listed in hosts.items():
            text = f"host:port,... (default: {','.join(listed)})"
            parser.add_argument(f"--{key}_hosts", metavar="HOSTS", type=to.listed(str), help=text)
        flags = parser.parse_args()
        alone, said = defaults.get("ps", 1) == 0, [getattr(flags, f"{key}_hosts") for key in hosts]
        # The launcher passes all of these, already checked.
        said_all = alone or None not in (flags.job_name, flags.task_index, *said)
        launched = "TASK_RESTARTS" in os.environ and said_all
        if alone:
            task = cls("worker", 0, {}, flags)
        elif launched:
            task = cls(flags.job_name, flags.task_index, dict(zip(hosts, said)), flags)
        else:
            task = cls(*by_hand.find(job, hosts, flags), flags)
        if task.hosts:
            flags.workers, flags.ps = len(task.hosts["worker"]), len(task.hosts.get("ps", []))
        command_line.complete(flags, defaults)
        named = flags.results is not None
        flags.results = flags.results or f"{folder}/results/{results.now()}-{job}-{task.index}"
        flags.checkpoint_dir = flags.checkpoint_dir or str(Path(flags.results) / "checkpoints")
        if not launched:
            if main == Path(sys.argv[0]):  # the script has told its DEFAULTS
                example.check_chosen(main, flags, defaults)
            by_hand.check(task, defaults, parser, named)
        # All sessions of a process share the threads that the first one requests. That session may
        # be TensorFlow's own, which reads this setting. After any use of TensorFlow it is too late.
        threads = task.config.intra_op_parallelism_threads
        with contextlib.suppress(RuntimeError):
            tf.config.threading.set_intra_op_parallelism_threads(threads)
        if not tf.executing_eagerly():
            task.first  # noqa: B018 - before any other operation
        return task

    @property
    def name(self) -> str:
        return f"{self.job} {self.index}"

    @property
    def address(self) -> str:
        return self.hosts[self.job][self.index]

    @property
    def is_chief(self) -> bool:
        """The chief initialises the global parameters, saves checkpoints and evaluates."""
        return (self.job, self.index) == ("chief" if "chief" in self.hosts else "worker", 0)

    @property
    def clients(self) -> dict[str, str]:
        """Name -> address of the tasks that have a session: the workers, or the chief."""
        job = "chief" if "chief" in self.hosts else "worker"
        return {f"{job} {k}": address for k, address in enumerate(self.hosts[job])}

    @property
    def servers(self) -> list[tuple[str, int]]:
        """Job and index of the bare servers: each ps; with a chief, also each worker."""
        jobs = ("ps", "worker") if "chief" in self.hosts else ("ps",)
        return [(job, k) for job in jobs for k, _ in enumerate(self.hosts.get(job, []))]

    @property
    def cluster(self) -> tf.train.ClusterSpec:
        return tf.train.ClusterSpec(self.hosts)

    @property
    def device(self) -> str:
        """This task's own device."""
        return f"/job:{self.job}/task:{self.index}" if self.hosts else ""

    @functools.cached_property
    def first(self) -> tf.Operation:
        """An operation of this task that does nothing. It must be the first of the graph, and part
        of every step: `common/graph/aborts.py` says why."""
        with tf.device(self.device):
            return tf.no_op(name="first")

    @functools.cached_property
    def config(self) -> tf.ConfigProto:
        """For this task's server and sessions; an example may change it before creating them.

        The device filters keep a session from waiting for workers that it does not need. All tasks
        of the cluster on this machine, or all threads, share its cores.
        """
        config = tf.ConfigProto()
        config.gpu_options.allow_growth = True
        config.allow_soft_placement = True  # what has no GPU version runs on the CPU
        if self.job == "ps":
            config.device_count["GPU"] = 0  # a ps keeps parameters in main memory
        tasks_here = getattr(self.flags, "threads", None) or 1
        if self.hosts:
            names = [a.rpartition(":")[0] for listed in self.hosts.values() for a in listed]
            tasks_here = names.count(self.address.rpartition(":")[0])
            if self.job != "chief":
                ps = ["/job:ps"] if self.job == "worker" and "chief" not in self.hosts else []
                config.device_filters.extend([*ps, self.device])
        config.intra_op_parallelism_threads = max(1, cores() // tasks_here)
        config.inter_op_parallelism_threads = max(1, cores() // tasks_here)
        config.experimental.disable_thread_spinning = True  # a waiting core serves another task
        # TensorFlow optimises each graph before it runs; for small ones that takes longer than it
        # saves. For large models, try it without this line.
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        late = [k for k in self.flags.delay or {} if self.name in ("chief 0", f"worker {k}")]
        called = self.job == "worker" and "chief" in self.hosts  # the chief's call waits here
        config.inter_op_parallelism_threads += len(late) + called  # that many may sleep or wait
        return config


def cores() -> int:
    """The number of processor cores that this process may use: a container may have a limit."""
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    with contextlib.suppress(OSError, ValueError):  # no cgroup; "max": no limit
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        found = min(found, math.ceil(int(quota) / int(period)))
    return found
