"""Runs one server of a cluster, for sessions in other processes.

    python -m common.commands.server --cluster_spec='local|localhost:2222' --job_name=local \\
        --task_index=0

Commas separate jobs; semicolons separate the tasks of a job. Start every task of the cluster with
the same specification: --cluster_spec='worker|a:2222;b:2222,ps|c:2222'
"""

import argparse
import re
import signal

from common import fail
from common.told import addresses
from common.told.by_hand import check_free, warn
from common.told.converters import WHOLE
from common.told.parser import Parser


def cluster_spec(text: str) -> dict[str, list[str]]:
    """`worker|a:2222;b:2222,ps|c:2222` -> {"worker": ["a:2222", "b:2222"], "ps": ["c:2222"]}.

    Raises:
        argparse.ArgumentTypeError: says what is wrong.
    """
    jobs: dict[str, list[str]] = {}
    for part in text.split(","):
        name, bar, tasks = part.partition("|")
        if not (bar and re.fullmatch("[A-Za-z][A-Za-z0-9_]*", name)):
            raise argparse.ArgumentTypeError(
                f"must look like 'job|host:port;host:port,job|host:port', in quotes, not {text!r}"
            )
        if name in jobs:
            raise argparse.ArgumentTypeError(f"names the job {name} twice: join its tasks with ;")
        jobs[name] = tasks.split(";")
    everyone = [address for tasks in jobs.values() for address in tasks]
    faults = [*map(addresses.fault, everyone)]
    if wrong := next(filter(None, faults), "") or addresses.shared(everyone):
        raise argparse.ArgumentTypeError(wrong)
    return jobs


def main() -> None:
    parser = Parser(
        prog="python -m common.commands.server",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    text = "all jobs and their tasks, 'job|host:port;host:port,job|host:port'"
    parser.add_argument(
        "--cluster_spec", type=cluster_spec, metavar="SPEC", required=True, help=text
    )
    parser.add_argument("--job_name", metavar="JOB", required=True, help="this server's job")
    parser.add_argument(
        "--task_index",
        type=WHOLE,
        metavar="K",
        default=0,
        help="this server's index within the job (default: 0)",
    )
    flags = parser.parse_args()
    jobs, job, index = flags.cluster_spec, flags.job_name, flags.task_index
    if job not in jobs:
        parser.error(f"--job_name: the cluster has the jobs {', '.join(jobs)}, not {job!r}")
    if index >= len(jobs[job]):
        parser.error(
            f"--task_index: there is no {job} {index}; the last one is {len(jobs[job]) - 1}"
        )
    serve(jobs, job, index)


def serve(jobs: dict[str, list[str]], job: str, index: int) -> None:
    """Serves until Ctrl-C or SIGTERM: TensorFlow has no call that ends a server."""
    address = jobs[job][index]
    _, port = addresses.split(address)
    check_free(address)
    ends = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)  # in TensorFlow's threads too
    from common.cluster import tf  # late, since it takes seconds; it also unsets the proxies

    try:
        tf.train.Server(jobs, job, index)
    except tf.errors.OpError as error:
        fail(f"cannot start a server at {address}: {error.message}")
    warn(f"port {port} is")
    print(f"{job} {index} serves at {address}; a session's target is grpc://{address}", flush=True)
    signal.sigwait(ends)


if __name__ == "__main__":
    main()
