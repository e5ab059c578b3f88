"""For a task started by hand: finds its cluster, checks its flags, writes its `task-*.json`."""

import errno
import os
import socket
import sys
from pathlib import Path

from common import fail
from common.record import parts
from common.told import addresses, mistakes, tf_config


def find(job: str, hosts: dict[str, list[str]], flags) -> tuple[str, int, dict[str, list[str]]]:
    """Returns the task's job, index and hosts: from its flags, else `TF_CONFIG`, else `hosts`.

    Raises:
        SystemExit: with a one-line error, if they are invalid.
    """
    name, index = job, 0
    said = {key: getattr(flags, f"{key}_hosts") for key in hosts}
    if os.environ.get("TF_CONFIG") and None in (*said.values(), flags.task_index):
        hosts, name, index = tf_config.parse(os.environ["TF_CONFIG"], job, tuple(hosts))
    hosts = hosts | {key: listed for key, listed in said.items() if listed is not None}
    name = flags.job_name or name
    index = index if flags.task_index is None else flags.task_index
    if name != job:
        fail(f"this is the {job}'s script, but the task is a {name}: start {name}.py instead")
    for key, listed in hosts.items():
        for address in listed:
            if wrong := addresses.fault(address):
                fail(f"{'TF_CONFIG' if said[key] is None else f'--{key}_hosts'}: {wrong}")
    if wrong := addresses.shared(address for listed in hosts.values() for address in listed):
        fail(wrong)
    if index >= len(hosts[name]):
        source = "TF_CONFIG" if flags.task_index is None else "--task_index"
        fail(f"{source}: there is no {name} {index}; the last one is {len(hosts[name]) - 1}")
    return name, index, hosts


def check(task, defaults: dict, parser, named: bool) -> None:
    """Checks the flags and the port; exits with a one-line error, or writes `task-JOB-INDEX.json`.

    `named`: whether the command line names a results folder. Without one, a bare server writes no
    file.
    """
    if task.flags.open and "--open" in parser.given:
        parser.error("--open: only run.sh shows a run; leave it out, and name the results folder "
                     "later: python -m common.commands.page FOLDER")  # fmt: skip
    for flag in sorted(parser.given & {"--link_mbit", "--network"}):
        if flag == "--link_mbit" or task.flags.network == "private":
            parser.error(f"{flag}: a task started by hand has no private network, since only "
                         "run.sh makes one; leave it out")  # fmt: skip
    mistakes.check(task.flags, defaults, parser)
    if task.hosts:
        check_free(task.address)
        warn(f"port {addresses.split(task.address)[1]} is")
    if "TASK_RESTARTS" not in os.environ and (named or (task.job, task.index) not in task.servers):
        parts.leave(task, Path(sys.argv[0]).resolve().parent.name)


def warn(what: str) -> None:
    """Warns that anybody can use `what` ("port 2222 is"): TensorFlow's servers authenticate nobody,
    and only `run.sh` gives them a network of their own."""
    print(f"warning: {what} open on all interfaces of this machine, without authentication: run "
          "only on a network that you trust", flush=True)  # fmt: skip


def check_free(address: str) -> None:
    """Exits with a one-line error if the port is in use. TensorFlow would silently share it with
    another TensorFlow server."""
    _, port = addresses.split(address)
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as TensorFlow does
        try:
            probe.bind(("", port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                fail(f"port {port} is in use: stop the program using it, or choose another port")
