"""The command line: an example's launcher and task scripts share it, and examples most flags."""

import argparse
import re
from pathlib import Path
from typing import NamedTuple

from common import fail
from common.datasets.known import DOWNLOADED, KNOWN, TEXTS
from common.told import about, gpus
from common.told import converters as to
from common.told.parser import Parser

DATASETS = (*KNOWN, *TEXTS)
MODELS = ("linear", "mlp", "cnn", "gpt")


class Flag(NamedTuple):
    kind: object  # its converter
    default: object
    metavar: str  # the name of its value in --help
    text: str


EVERYWHERE = {
    "workers": Flag(to.COUNT, 2, "N", "worker processes"),
    "ps": Flag(to.WHOLE, 1, "N", "parameter server processes"),
    "steps": Flag(to.COUNT, 2000, "N", "updates of the network, by all its workers together"),
    "batch_size": Flag(to.WHOLE, 32, "B", "per worker; 0: its whole shard, in order"),
    "learning_rate": Flag(to.POSITIVE, 0.2, "R", "step size, eta"),
    "data": Flag(to.dataset(DATASETS, ".npz", ".txt"), "digits", "NAME",
                 f"{', '.join(DATASETS)}, PATH.npz or PATH.txt"),
    "data_url": Flag(str, None, "URL", "download source (default: the data's publisher)"),
    "model": Flag(to.choice(MODELS), "mlp", "NAME", f"the network: {', '.join(MODELS)}"),
    "hidden": Flag(to.COUNT, 128, "H", "width of the mlp's hidden layer"),
    "seed": Flag(to.WHOLE, 0, "S", "random seed for initial values and data order"),
    "target_accuracy": Flag(to.SHARE, None, "A", "stop when the test accuracy reaches A"),
    "delay": Flag(to.delays, None, "K:SECONDS", "worker K's batches come SECONDS late"),
    "steps_per_execution": Flag(to.COUNT, 1, "N", "steps per call of the session"),
    "results": Flag(to.path, None, "DIR", "results folder (default: results/<time>)"),
    "checkpoint_dir": Flag(to.path, None, "DIR", "save and resume here (default: in --results)"),
    "max_restarts": Flag(to.WHOLE, 3, "N", "how many times to restart a killed task"),
    "timeout": Flag(to.POSITIVE, 600, "SECONDS", "time limit for the whole run"),
    "network": Flag(to.choice(("auto", "private", "host")), "auto", "NAME",
                    "private: only this run can reach its servers; host: their ports are open to "
                    "the network; auto: private if the system allows it"),
    "link_mbit": Flag(to.POSITIVE, None, "M",
                      "limit the private network to M Mbit/s, like a link between machines"),
}  # fmt: skip
TARGET = Flag(to.number(float, "a number"), None, "T",
              "stop when the test metric, which is not an accuracy, reaches T")  # fmt: skip
# The flags of an example that trains networks of models.py, not its own.
WITH_NETWORKS = {
    "compute_ms": Flag(to.POSITIVE, None, "M",
                       "a mini-batch takes at least M ms, asleep, as if an accelerator computed"),
}  # fmt: skip
# The flags of an example that can train all of them: with one of `MODELS` in its DEFAULTS, not a
# tuple.
EVALUATE_EVERY = Flag(to.COUNT, None, "N", "updates between evaluations; none: about 50 in a run")
WITH_ALL = {
    "evaluate_every": EVALUATE_EVERY,
    "layers": Flag(to.COUNT, 2, "N", "the gpt's blocks"),
    "heads": Flag(to.COUNT, 4, "N", "the gpt's heads of attention; a divisor of --width"),
    "width": Flag(to.COUNT, 64, "N", "the gpt's numbers per character"),
    "context": Flag(to.COUNT, 32, "N", "how many characters the gpt sees"),
    "target": TARGET._replace(text="stop when the test bits per character fall to T"),
}
# Known flags that an example has only if its DEFAULTS name them. Several examples share them; what
# only one example has is in its about.py.
IF_NAMED = {
    "window": Flag(to.COUNT, 10, "T", "local steps between a pull and a push"),
    "moving_rate": Flag(to.ZERO_TO_ONE, None, "A", "alpha, elastic (default: 0.9 / workers)"),
    "momentum": Flag(to.BELOW_ONE, 0.9, "D", "delta, Nesterov's momentum"),
    "inner": Flag(to.choice(("adamw", "sgd")), "adamw", "NAME", "local steps: adamw, sgd"),
    "inner_beta1": Flag(to.BELOW_ONE, 0.9, "B", "b1, decay of AdamW's first moment m"),
    "inner_beta2": Flag(to.BELOW_ONE, 0.99, "B", "b2, decay of AdamW's second moment v"),
    "inner_epsilon": Flag(to.POSITIVE, 1e-8, "E", "eps, keeps AdamW from dividing by 0"),
    "weight_decay": Flag(to.number(float, "0 or more", lambda value: value >= 0), 0.1, "D",
                         "AdamW's decay of all parameters"),
    "outer": Flag(to.choice(("nesterov", "momentum")), "nesterov", "NAME",
                  "update on the ps: nesterov (DiLoCo), momentum (SlowMo)"),
    "outer_rate": Flag(to.POSITIVE, 0.7, "R", "step size of the update on the ps"),
    "outer_momentum": Flag(to.BELOW_ONE, 0.9, "M", "momentum of the update on the ps"),
    "delay_period": Flag(to.COUNT, None, "N", "updates per change of u (default: workers)"),
    "dynamic_steps": Flag(bool, False, "", "slower workers make fewer local steps"),
    "backup_workers": Flag(to.WHOLE, 0, "B", "an update waits for all workers but B"),
    "max_staleness": Flag(to.WHOLE, 3, "S", "steps that a worker may be ahead of the slowest"),
    "learning_rates": Flag(to.listed(to.POSITIVE), None, "A,B,...",
                           "one per worker (default: learning_rate / workers)"),
    "target": TARGET,
    "patience": Flag(to.COUNT, None, "N",
                     "stop after N evaluations in a row without a better one; keep the best"),
    "evaluate_every": EVALUATE_EVERY,
    "evaluate_on": Flag(to.COUNT, 1000, "N", "test examples; at the end, all"),
    "checkpoint_every": Flag(to.COUNT, None, "N",
                             "updates between checkpoints; none: one each second"),
    "keep_checkpoints": Flag(to.COUNT, 2, "N", "how many checkpoints to keep, the newest"),
    "threads": Flag(to.COUNT, None, "N", "one process with N threads, no ps (default: processes)"),
}  # fmt: skip


def _text(default) -> str:
    """A default as a user would type it."""
    if isinstance(default, dict):  # --delay
        default = [f"{worker}:{seconds:g}" for worker, seconds in default.items()]
    return ",".join(map(str, default)) if isinstance(default, list) else str(default)


def _own(name: str, default) -> Flag:
    """A flag that only this example has; the type of its default becomes its type."""
    if name in ("help", "plain", "open", "job_name", "task_index", "ps_hosts", "worker_hosts"):
        fail(f'DEFAULTS["{name}"]: every example has a --{name} already; choose another name')
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
    fail(
        f'DEFAULTS["{name}"] is {default!r}: a flag gets its type from its default, so use '
        "a number, a string, True, False, a list of numbers or a tuple of choices"
    )


def _checked(name: str, flag: Flag, default, folder: Path | None) -> Flag:
    """A known flag with an example's own default, which the flag must accept."""
    if isinstance(default, tuple):
        return Flag(to.choice(default), default[0], "NAME", ", ".join(default))
    if name == "model" and isinstance(default, str) and default not in MODELS:
        # The example's own network is its only one.
        flag = flag._replace(kind=to.choice((default,)), text="this example's own network")
    if name == "data" and (suffix := Path(str(default)).suffix):
        default = str((folder or Path()) / default)  # wherever the example is started from
        if suffix not in (".npz", ".txt"):  # the example reads such files itself
            text = f"a {suffix} file (default: {Path(default).name})"
            flag = flag._replace(kind=to.dataset((), suffix), metavar="PATH", text=text)
    if name == "workers" and default is None:
        text = "replicas (default: one per GPU, or 2 without a GPU)"
        return flag._replace(default=gpus.count() or 2, text=text)
    if default is not None and flag.kind is not bool:
        try:
            default = flag.kind(_text(default))
        except argparse.ArgumentTypeError as error:
            fail(f'DEFAULTS["{name}"] {error}')
    return flag._replace(default=default)


def parser(
    defaults: dict,
    description: str = "",
    folder: Path | None = None,
    everywhere: dict[str, Flag] = EVERYWHERE,
) -> Parser:
    """Makes the parser for all flags of an example, with the example's own defaults.

    Args:
        defaults: an example's `DEFAULTS`. The name of a known flag sets its default; any other name
            becomes a flag with the type of its default. `chief` is no flag.
        description: the text above the list of flags in `--help`.
        folder: the example's folder, which may hold an `about.py`; a file named by `data` in
            `DEFAULTS` is relative to it.
        everywhere: the flags that it has in any case.
    """
    defaults = {name: default for name, default in defaults.items() if name != "chief"}
    told = about.read(folder) if folder else about.About()
    known = everywhere | IF_NAMED | told.flags
    model = defaults.get("model", "mlp") if "model" in everywhere else None
    if model in MODELS or isinstance(model, tuple):
        everywhere = everywhere | WITH_NETWORKS
    if model in MODELS:
        everywhere = everywhere | {name: flag for name, flag in WITH_ALL.items()
                                   if name not in defaults}  # fmt: skip
    flags = everywhere | {name: flag for name, flag in known.items() if name in defaults}
    for name, default in defaults.items():
        if name in known:
            flags[name] = _checked(name, flags[name], default, folder)
        else:
            flags[name] = _own(name, default)
    p = Parser(
        description=description,
        allow_abbrev=False,
        usage="run.sh [flags]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    none = {name for name, default in defaults.items() if default is None and name in everywhere}
    p.unused = frozenset(f"--{name}" for name in none - {"workers"})
    p.downloads = frozenset({*DOWNLOADED, *told.downloads})  # what --data_url may replace
    p._negative_number_matcher = re.compile(r"-[\d.]+(e[+-]?\d+)?$", re.I)  # with exponents
    for name, (kind, default, metavar, text) in flags.items():
        if "(default: " not in text:
            text += f" (default: {'none' if default is None else _text(default)})"
        how = {"type": kind, "metavar": metavar}
        if kind is bool:
            how = {"action": argparse.BooleanOptionalAction}
        # Set afterwards, since Python 3.10 appends the default of a bool to a help text.
        p.add_argument(f"--{name}", default=default, **how).help = text.replace("%", "%%")
    text = "no progress bar (default: show one on a terminal)"
    p.add_argument("--plain", action="store_true", help=text)
    text = "show the run in a browser, also while it trains (default: do not)"
    p.add_argument("--open", action="store_true", help=text)
    return p


def complete(flags: argparse.Namespace, defaults: dict) -> None:
    """Sets flags that depend on others, and those of an example without parameter servers."""
    if not defaults.get("ps", 1):
        flags.workers, flags.ps = getattr(flags, "threads", None) or flags.workers, 0
    if "moving_rate" in defaults and flags.moving_rate is None:
        flags.moving_rate = 0.9 / flags.workers
    if "delay_period" in defaults and flags.delay_period is None:
        flags.delay_period = flags.workers
    if "learning_rates" in defaults and flags.learning_rates is None:
        flags.learning_rates = [flags.learning_rate / flags.workers] * flags.workers
