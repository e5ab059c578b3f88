"""The command line: the same flags for every example, its launcher and its task scripts."""

import argparse
import re
import sys
from pathlib import Path
from typing import NamedTuple

from common import fail
from common.launch.converters import choice, dataset, delays, number, numbers, path

DATASETS = ("digits", "mnist", "fashion_mnist", "cifar10", "synthetic")
DOWNLOADED = ("mnist", "fashion_mnist", "cifar10")
MODELS = ("linear", "mlp", "cnn")
MODES = ("asynchronous", "synchronous", "towers")


class Parser(argparse.ArgumentParser):
    def parse_args(self, args=None, namespace=None):
        """Also remembers which flags were given: `given`, with their dashes."""
        words = sys.argv[1:] if args is None else args
        self.given = {word.partition("=")[0] for word in words if word.startswith("--")}
        return super().parse_args(args, namespace)

    def error(self, message):
        message = re.sub(r"^unrecognized arguments: ", "unknown flag ", message)
        fail(re.sub(r"^argument (--\w+).*?: ", r"\1: ", message) + " (--help lists all flags)")


class Flag(NamedTuple):
    """A flag: its converter, its default, the word for its value in `--help`, and what it does."""

    kind: object
    default: object
    metavar: str
    text: str


_COUNT, _SHARE = number(int, 1), number(float, 0, strict=True)
EVERYWHERE = {
    "workers": Flag(_COUNT, 2, "N", "worker processes"),
    "ps": Flag(number(int, 0), 1, "N", "parameter server processes"),
    "steps": Flag(_COUNT, 2000, "N", "stop when global_step, the updates of all workers, is N"),
    "batch_size": Flag(number(int, 0), 32, "B", "per worker; 0: the whole shard in order"),
    "learning_rate": Flag(_SHARE, 0.2, "R", "eta"),
    "data": Flag(dataset(DATASETS), "digits", "NAME", f"{', '.join(DATASETS)}, or PATH.npz"),
    "data_url": Flag(str, None, "URL", "download from here (default: the data's publisher)"),
    "model": Flag(choice(MODELS), "mlp", "NAME", f"the network: {', '.join(MODELS)}"),
    "hidden": Flag(_COUNT, 128, "H", "width of the mlp's hidden layer"),
    "seed": Flag(number(int, 0), 0, "S", "of initial values and the order of the data"),
    "target_accuracy": Flag(_SHARE, None, "A", "stop when the test accuracy reaches A"),
    "delay": Flag(delays, None, "K:SECONDS", "worker K sleeps that long in every step"),
    "steps_per_execution": Flag(_COUNT, 1, "N", "steps in one call of the session"),
    "results": Flag(path, None, "DIR", "results folder (default: results/<time> in the example)"),
    "checkpoint_dir": Flag(path, None, "DIR", "resume and save here (default: in the results)"),
    "max_restarts": Flag(number(int, 0), 3, "N", "how often a killed task is started again"),
    "timeout": Flag(_SHARE, 600, "SECONDS", "for the whole run"),
    "network": Flag(choice(("auto", "private", "host")), "auto", "NAME",
                    "private: only this run reaches its servers; host: their ports are open to "
                    "the network; auto: private where the system allows it"),
}  # fmt: skip
# Known flags that an example has only if its DEFAULTS name them.
IF_NAMED = {
    "window": Flag(_COUNT, 10, "T", "local steps between a pull and a push"),
    "moving_rate": Flag(number(float, 0), None, "A", "alpha, elastic (default: 0.9 / workers)"),
    "momentum": Flag(number(float, 0), 0.9, "D", "delta, Nesterov's momentum"),
    "backup_workers": Flag(number(int, 0), 0, "B", "an update waits for all workers but B"),
    "learning_rates": Flag(numbers(float, 0, strict=True), None, "A,B,...",
                           "one for each worker (default: learning_rate / workers)"),
    "threads": Flag(_COUNT, None, "N", "one process with N threads, no ps (default: processes)"),
    "mode": Flag(choice(MODES), MODES[0], "NAME", ", ".join(MODES)),
    "memory_fraction": Flag(_SHARE, None, "F", "of a GPU's memory, for each process (default: as "
                            "much as it needs)"),
}  # fmt: skip


def _text(default) -> str:
    """A default as it would be typed."""
    if isinstance(default, dict):  # of --delay
        default = [f"{worker}:{seconds:g}" for worker, seconds in default.items()]
    return ",".join(map(str, default)) if isinstance(default, list) else str(default)


def _own(name: str, default) -> Flag:
    """A flag that only this example has: of the type of its default, which must show one."""
    if name in ("help", "plain", "job_name", "task_index", "ps_hosts", "worker_hosts"):
        fail(f'DEFAULTS["{name}"]: every example has a --{name} already, choose another name')
    text = f"this example's {name}"
    if isinstance(default, bool):
        return Flag(bool, default, "", text)
    if isinstance(default, (int, float)):
        return Flag(number(type(default)), default, "N", text)
    if isinstance(default, str):
        return Flag(str, default, "TEXT", text)
    if isinstance(default, list) and default and all(type(x) in (int, float) for x in default):
        kind = float if float in map(type, default) else int
        return Flag(numbers(kind), default, "A,B,...", text)
    fail(f'DEFAULTS["{name}"] is {default!r}: a flag of your own needs a number, a text, True, '
         "False or a list of numbers as its default, which shows its type")  # fmt: skip


def _checked(name: str, flag: Flag, default) -> Flag:
    """A known flag with an example's own default, which must be one that the flag accepts."""
    suffix = Path(str(default)).suffix
    if name == "model" and isinstance(default, str) and default not in MODELS:
        # Its own network, and so its only one.
        flag = flag._replace(kind=choice((default,)), text="this example's own network")
    if name == "data" and suffix not in ("", ".npz"):  # it reads such files itself
        flag = flag._replace(
            kind=dataset((), suffix),
            metavar="PATH",
            text=f"a {suffix} file (default: {Path(default).name})",
        )
    if name == "workers" and default is None:
        from common.launch import gpus

        text = "replicas (default: one for each GPU; 2 on a machine without)"
        return flag._replace(default=gpus.count() or 2, text=text)
    if default is not None:
        try:
            default = flag.kind(_text(default))
        except argparse.ArgumentTypeError as error:
            fail(f'DEFAULTS["{name}"] {error}')
    return flag._replace(default=default)


def parser(defaults: dict, description: str = "") -> Parser:
    """All flags of an example, with its own defaults.

    Args:
        defaults: an example's `DEFAULTS`. A known flag's name sets its default; any other name
            becomes a flag of the type of its default.
        description: the text above the list in `--help`.
    """
    flags = EVERYWHERE | {name: flag for name, flag in IF_NAMED.items() if name in defaults}
    for name, default in defaults.items():
        known = flags.get(name)
        flags[name] = _checked(name, known, default) if known else _own(name, default)
    p = Parser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        usage="run.sh [flags]",
    )
    for name, (kind, default, metavar, text) in flags.items():
        if "(default: " not in text:
            text += f" (default: {'none' if default is None else _text(default)})"
        how = {"type": kind, "metavar": metavar}
        if kind is bool:
            how = {"action": argparse.BooleanOptionalAction}
        # Set afterwards: Python 3.10 adds the default of a bool to the text that it is given.
        p.add_argument(f"--{name}", default=default, **how).help = text.replace("%", "%%")
    text = "no progress bar (default: one, on a terminal)"
    p.add_argument("--plain", action="store_true", help=text)
    return p


def check(flags: argparse.Namespace, defaults: dict, parse: Parser) -> None:
    """What no single flag can say: what an example is, and what fits together."""
    if getattr(flags, "threads", None):
        several = sorted(parse.given & {"--ps", "--workers", "--ps_hosts", "--worker_hosts"})
        if several:
            parse.error(f"--threads {flags.threads}: these are threads of one process; leave out "
                        f"{several[0]}")  # fmt: skip
        flags.workers, flags.ps, defaults = flags.threads, 0, defaults | {"ps": 0}
    if getattr(flags, "mode", None) == "towers":
        if parse.given & {"--ps", "--ps_hosts", "--worker_hosts"}:
            parse.error("--mode towers: the towers are in one process; leave --ps out")
        flags.ps, defaults = 0, defaults | {"ps": 0}
    if defaults.get("workers", 2) == 1 and flags.workers != 1:
        parse.error(f"--workers {flags.workers}: this example has one worker; HogWild has many")
    if defaults.get("ps", 1) == 0 and flags.ps != 0:
        parse.error(f"--ps {flags.ps}: this example has no parameter server")
    if defaults.get("ps", 1) > 0 and flags.ps == 0:
        parse.error("--ps 0: this example needs a parameter server")
    if "moving_rate" in defaults and flags.moving_rate is None:
        flags.moving_rate = 0.9 / flags.workers
    for name in ("target_accuracy", "memory_fraction", "moving_rate"):
        value = getattr(flags, name, None)
        if value is not None and value > 1:
            parse.error(f"--{name} {value:g}: must be at most 1")
    if getattr(flags, "momentum", 0) >= 1:
        parse.error(f"--momentum {flags.momentum:g}: must be below 1")
    if getattr(flags, "backup_workers", 0) >= flags.workers:
        parse.error(f"--backup_workers {flags.backup_workers}: must be below --workers, "
                    f"{flags.workers}, or an update would hold no gradient")  # fmt: skip
    if "learning_rates" in defaults and flags.learning_rates is None:
        flags.learning_rates = [flags.learning_rate / flags.workers] * flags.workers
    if len(getattr(flags, "learning_rates", range(flags.workers))) != flags.workers:
        parse.error(f"--learning_rates: {len(flags.learning_rates)} of them for --workers "
                    f"{flags.workers}; give one for each")  # fmt: skip
    for worker in flags.delay or {}:
        if worker >= flags.workers:
            parse.error(f"--delay {worker}:...: the last worker is {flags.workers - 1}")
    if flags.data not in DATASETS and not Path(flags.data).is_file():
        parse.error(f"--data: there is no file {flags.data}")
    if flags.data_url and flags.data not in DOWNLOADED:
        parse.error(f"--data_url: {flags.data} is not downloaded, leave the flag out")
