"""The command line: the same flags for every example, its launcher and its task scripts."""

import argparse
import ast
import math
import re
import sys
from pathlib import Path
from typing import NoReturn

from common import gpus

DATASETS = ("digits", "mnist", "fashion_mnist", "cifar10", "synthetic")
MODES = ("asynchronous", "synchronous", "towers")
MODELS = ("linear", "mlp", "cnn")


def fail(message: str) -> NoReturn:
    """Ends this process with one sentence for the user and exit code 2."""
    print(f"error: {message}", file=sys.stderr, flush=True)
    raise SystemExit(2)


class _Parser(argparse.ArgumentParser):
    def parse_args(self, args=None, namespace=None):
        """Also remembers which flags were given: `given`, with their dashes."""
        words = sys.argv[1:] if args is None else args
        self.given = {word.partition("=")[0] for word in words if word.startswith("--")}
        return super().parse_args(args, namespace)

    def error(self, message):
        message = re.sub(r"^unrecognized arguments: ", "unknown flag ", message)
        fail(re.sub(r"^argument (--\w+): ", r"\1: ", message) + " (--help lists all flags)")


def number(kind: type, least: float, strict: bool = False):
    """A converter for argparse: a finite `kind` of at least (`strict`: above) `least`."""

    def convert(text: str):
        wanted = "a whole number" if kind is int else "a number"
        wanted += f" above {least:g}" if strict else f", {least:g} or more"
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        most = 2**53 if kind is int else math.inf
        if not least <= value < most or (strict and value == least):  # NaN is in no range
            raise argparse.ArgumentTypeError(f"must be {wanted}, not {text!r}")
        return value

    return convert


def delays(text: str) -> dict[int, float]:
    """`0:0.1,2:0.5` -> {0: 0.1, 2: 0.5}: seconds that a worker sleeps in every step."""
    found = re.findall(r"(\d+):(\d+(?:\.\d*)?|\.\d+)(?:,|$)", text)
    if ",".join(":".join(pair) for pair in found) != text or not found:
        raise argparse.ArgumentTypeError(f"must read K:SECONDS[,K:SECONDS], not {text!r}")
    return {int(worker): float(seconds) for worker, seconds in found}


def rates(text: str) -> list[float]:
    """`0.1,0.2` -> [0.1, 0.2]: a learning rate for each worker."""
    return [number(float, 0, strict=True)(part) for part in text.split(",")]


def mode(text: str) -> str:
    """One of the ways in which several GPUs of a machine are used."""
    if text not in MODES:
        raise argparse.ArgumentTypeError(f"must be one of {', '.join(MODES)}, not {text!r}")
    return text


def dataset(text: str) -> str:
    """A known name, or the path of an .npz file (made absolute)."""
    if text in DATASETS:
        return text
    if not text.endswith(".npz"):
        known = ", ".join(DATASETS)
        raise argparse.ArgumentTypeError(f"must be one of {known} or PATH.npz, not {text!r}")
    return str(Path(text).absolute())


def path(text: str) -> str:
    """Made absolute here, so that tasks may run in any directory."""
    return str(Path(text).absolute())


def example_of(script: Path) -> tuple[dict, str]:
    """What an example says of itself: its `DEFAULTS` and its docstring, without running it."""
    tree = ast.parse(script.read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "DEFAULTS":
            return ast.literal_eval(node.value), ast.get_docstring(tree) or ""
    fail(f"{script} has no DEFAULTS = {{...}} of literal values: copy that line from an example")


def parser(defaults: dict, description: str = "") -> argparse.ArgumentParser:
    """All flags with their defaults.

    Args:
        defaults: an example's own `DEFAULTS`; a scheme's own flag exists where it is named there.
        description: the text above the list in `--help`.
    """
    p = _Parser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        usage="run.sh [flags]",
    )

    def flag(name, kind, default, metavar, text, **more):
        if "(default: " not in text:
            text += f" (default: {'none' if default is None else default})"
        text = text.replace("%", "%%")
        p.add_argument("--" + name, type=kind, default=default, metavar=metavar, help=text, **more)

    count = number(int, 1)
    workers = defaults.get("workers", 2)
    if workers is None:
        text = "replicas (default: one for each GPU; 2 on a machine without)"
        flag("workers", count, gpus.count() or 2, "N", text)
    else:
        flag("workers", count, workers, "N", "worker processes")
    flag("ps", number(int, 0), defaults.get("ps", 1), "N", "parameter server processes")
    flag(
        "steps",
        count,
        defaults["steps"],
        "N",
        "stop when global_step, the updates of all workers, reaches N",
    )
    if "window" in defaults:
        flag("window", count, defaults["window"], "T", "local steps between a pull and a push")
    flag("batch_size", number(int, 0), 32, "B", "per worker; 0: the whole shard in order")
    rate = defaults["learning_rate"]
    flag("learning_rate", number(float, 0, strict=True), rate, "R", "eta")
    flag("data", dataset, "digits", "NAME", f"{', '.join(DATASETS)}, or PATH.npz")
    flag("data_url", str, None, "URL", "download from here (default: the publisher of the data)")
    p.add_argument("--model", choices=MODELS, default="mlp", help="the network (default: mlp)")
    flag("hidden", count, 128, "H", "width of the mlp's hidden layer")
    flag("seed", number(int, 0), 0, "S", "of initial values and the order of the data")
    share = number(float, 0, strict=True)
    flag("target_accuracy", share, None, "A", "stop when the test accuracy reaches A")
    flag("delay", delays, None, "K:SECONDS", "worker K sleeps that long in every step")
    flag("results", path, None, "DIR", "results folder (default: results/<time> in the example)")
    flag("checkpoint_dir", path, None, "DIR", "resume from and save here (default: in the results)")
    flag(
        "max_restarts", number(int, 0), 3, "N", "a task that is killed is started again that often"
    )
    flag("timeout", number(float, 0, strict=True), 600, "SECONDS", "for the whole run")
    p.add_argument(
        "--network",
        choices=("auto", "private", "host"),
        default="auto",
        help="private: no other process reaches the run's servers; host: their ports are open "
        "to the network; auto: private where the system allows it (default: auto)",
    )
    for name, (kind, metavar, text) in OWN_FLAGS.items():
        if name in defaults:
            flag(name, kind, defaults[name], metavar, text)
    p.add_argument(
        "--plain", action="store_true", help="no progress bar (default: one, on a terminal)"
    )
    return p


# Flags of some schemes, where their DEFAULTS name them: converter, placeholder, help.
OWN_FLAGS = {
    "moving_rate": (number(float, 0), "A", "alpha, the elastic exchange (default: 0.9 / workers)"),
    "momentum": (number(float, 0), "D", "delta, Nesterov's momentum"),
    "backup_workers": (number(int, 0), "B", "an update waits for all workers but B"),
    "mode": (mode, "NAME", f"{', '.join(MODES)}"),
    "memory_fraction": (
        number(float, 0, strict=True),
        "F",
        "of a GPU's memory, for each process (default: as much as it needs)",
    ),
    "threads": (number(int, 1), "N", "one process with N threads, no ps (default: processes)"),
    "learning_rates": (rates, "A,B,...", "each worker's own (default: learning_rate / workers)"),
}


def check(flags: argparse.Namespace, defaults: dict, parse: argparse.ArgumentParser) -> None:
    """What no single flag can say: what an example is, and what fits together."""
    if getattr(flags, "threads", None):
        several = sorted(parse.given & {"--ps", "--workers", "--ps_hosts", "--worker_hosts"})
        if several:
            parse.error(f"--threads {flags.threads}: these are threads of one process; leave out "
                        f"{several[0]}")  # fmt: skip
        flags.workers, flags.ps, defaults = flags.threads, 0, defaults | {"ps": 0}
    if (getattr(flags, "memory_fraction", None) or 0) > 1:
        parse.error(f"--memory_fraction {flags.memory_fraction:g}: must be a share of at most 1")
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
    if flags.target_accuracy is not None and flags.target_accuracy > 1:
        parse.error(f"--target_accuracy {flags.target_accuracy}: must be a share of at most 1")
    if "moving_rate" in defaults and flags.moving_rate is None:
        flags.moving_rate = 0.9 / flags.workers
    if getattr(flags, "moving_rate", 0) > 1:
        parse.error(f"--moving_rate {flags.moving_rate:g}: must be at most 1")
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
    if flags.data.endswith(".npz") and not Path(flags.data).is_file():
        parse.error(f"--data: there is no file {flags.data}")
    if flags.data_url and flags.data not in ("mnist", "fashion_mnist", "cifar10"):
        parse.error(f"--data_url: {flags.data} is not downloaded, leave the flag out")
