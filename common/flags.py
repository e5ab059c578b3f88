"""The command line: the same flags for every example, its launcher and its task scripts."""

import argparse
import re
import sys
from pathlib import Path
from typing import NamedTuple

from common import fail
from common.datasets import KNOWN
from common.launch import converters as to

DATASETS = tuple(KNOWN)
DOWNLOADED = ("mnist", "fashion_mnist", "cifar10")
MODELS = ("linear", "mlp", "cnn")


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
    kind: object  # its converter
    default: object
    metavar: str  # for its value, in --help
    text: str


EVERYWHERE = {
    "workers": Flag(to.COUNT, 2, "N", "worker processes"),
    "ps": Flag(to.WHOLE, 1, "N", "parameter server processes"),
    "steps": Flag(to.COUNT, 2000, "N", "updates of a network, by all its workers together"),
    "batch_size": Flag(to.WHOLE, 32, "B", "per worker; 0: the whole shard in order"),
    "learning_rate": Flag(to.POSITIVE, 0.2, "R", "eta"),
    "data": Flag(to.dataset(DATASETS), "digits", "NAME", f"{', '.join(DATASETS)}, or PATH.npz"),
    "data_url": Flag(str, None, "URL", "download from here (default: the data's publisher)"),
    "model": Flag(to.choice(MODELS), "mlp", "NAME", f"the network: {', '.join(MODELS)}"),
    "hidden": Flag(to.COUNT, 128, "H", "width of the mlp's hidden layer"),
    "seed": Flag(to.WHOLE, 0, "S", "of initial values and the order of the data"),
    "target_accuracy": Flag(to.SHARE, None, "A", "stop when the test accuracy reaches A"),
    "delay": Flag(to.delays, None, "K:SECONDS", "worker K sleeps that long in every step"),
    "steps_per_execution": Flag(to.COUNT, 1, "N", "steps in one call of the session"),
    "results": Flag(to.path, None, "DIR", "results folder (default: results/<time>)"),
    "checkpoint_dir": Flag(to.path, None, "DIR", "resume and save here (default: in the results)"),
    "max_restarts": Flag(to.WHOLE, 3, "N", "how often a killed task is started again"),
    "timeout": Flag(to.POSITIVE, 600, "SECONDS", "for the whole run"),
    "network": Flag(to.choice(("auto", "private", "host")), "auto", "NAME",
                    "private: only this run reaches its servers; host: their ports are open to "
                    "the network; auto: private where the system allows it"),
    "link_mbit": Flag(to.POSITIVE, None, "M",
                      "the private network's link carries M Mbit/s, as between machines"),
}  # fmt: skip
# Known flags that an example has only if its DEFAULTS name them.
IF_NAMED = {
    "window": Flag(to.COUNT, 10, "T", "local steps between a pull and a push"),
    "moving_rate": Flag(to.ZERO_TO_ONE, None, "A", "alpha, elastic (default: 0.9 / workers)"),
    "momentum": Flag(to.BELOW_ONE, 0.9, "D", "delta, Nesterov's momentum"),
    "backup_workers": Flag(to.WHOLE, 0, "B", "an update waits for all workers but B"),
    "learning_rates": Flag(to.listed(to.POSITIVE), None, "A,B,...",
                           "one for each worker (default: learning_rate / workers)"),
    "threads": Flag(to.COUNT, None, "N", "one process with N threads, no ps (default: processes)"),
    "memory_fraction": Flag(to.SHARE, None, "F",
                            "of a GPU's memory, for each process (default: all it needs)"),
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
    whole = to.number(int, "a whole number, like its default")
    number = {int: whole, float: to.number(float, "a number")}
    if isinstance(default, bool):
        return Flag(bool, default, "", text)
    if isinstance(default, (int, float)):
        return Flag(number[type(default)], default, "N", text)
    if isinstance(default, str):
        return Flag(str, default, "TEXT", text)
    if isinstance(default, tuple) and default and all(type(x) is str for x in default):
        return Flag(to.choice(default), default[0], "NAME", ", ".join(default))
    if isinstance(default, list) and default and all(type(x) in (int, float) for x in default):
        kind = float if float in map(type, default) else int
        return Flag(to.listed(number[kind]), default, "A,B,...", text)
    fail(f'DEFAULTS["{name}"] is {default!r}: a flag of your own needs a number, a text, True, '
         "False, a list of numbers, or a tuple of all its words as its default, which shows its "
         "type")  # fmt: skip


def _checked(name: str, flag: Flag, default, folder: Path) -> Flag:
    """A known flag with an example's own default, which must be one that the flag accepts."""
    if isinstance(default, tuple):
        return Flag(to.choice(default), default[0], "NAME", ", ".join(default))
    if name == "model" and isinstance(default, str) and default not in MODELS:
        # Its own network, and so its only one.
        flag = flag._replace(kind=to.choice((default,)), text="this example's own network")
    if name == "data" and (suffix := Path(str(default)).suffix):
        default = str(folder / default)  # wherever the example is started from
        if suffix != ".npz":  # it reads such files itself
            text = f"a {suffix} file (default: {Path(default).name})"
            flag = flag._replace(kind=to.dataset((), suffix), metavar="PATH", text=text)
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


def parser(defaults: dict, description: str = "", folder: Path = Path()) -> Parser:
    """All flags of an example, with its own defaults.

    Args:
        defaults: an example's `DEFAULTS`. A known flag's name sets its default; any other name
            becomes a flag of the type of its default.
        description: the text above the list in `--help`.
        folder: the example's; a file that `DEFAULTS` names as `data` lies there.
    """
    flags = EVERYWHERE | {name: flag for name, flag in IF_NAMED.items() if name in defaults}
    for name, default in defaults.items():
        known = flags.get(name)
        flags[name] = _checked(name, known, default, folder) if known else _own(name, default)
    p = Parser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        usage="run.sh [flags]",
    )
    p._negative_number_matcher = re.compile(r"-[\d.]+(e[+-]?\d+)?$", re.I)  # Python's lacks the e
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


def complete(flags: argparse.Namespace, defaults: dict) -> None:
    """Sets what depends on other flags, and what an example without parameter servers has."""
    if not defaults.get("ps", 1):
        flags.workers, flags.ps = getattr(flags, "threads", None) or flags.workers, 0
    if "moving_rate" in defaults and flags.moving_rate is None:
        flags.moving_rate = 0.9 / flags.workers
    if "learning_rates" in defaults and flags.learning_rates is None:
        flags.learning_rates = [flags.learning_rate / flags.workers] * flags.workers
