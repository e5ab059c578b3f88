"""Finds flags that are valid on their own but do not fit the example, or each other."""

import argparse
from pathlib import Path

from common.datasets.known import is_text
from common.told.parser import Parser


def check(flags: argparse.Namespace, defaults: dict, parse: Parser) -> None:
    """Exits with a one-line error if flags do not fit the example, or each other.

    Args:
        flags: the command line, completed.
        defaults: the example's `DEFAULTS`.
        parse: the parser, which knows the flags that were given.
    """
    ps = defaults.get("ps", 1)
    if not ps:
        none, why = {"--ps", "--ps_hosts"}, "has no parameter server"
        if ps is not None:
            none, why = none | {"--worker_hosts"}, "runs in one process"
        if getattr(flags, "threads", None):
            none = none | {"--workers"}
        for flag in sorted(parse.given & none):
            parse.error(f"{flag}: this example {why}; leave it out")
    if defaults.get("workers", 2) == 1 and flags.workers != 1:
        parse.error(f"--workers {flags.workers}: this example has one worker; to use more: HogWild")
    if ps and flags.ps == 0:
        parse.error("--ps 0: this example needs a parameter server")
    if getattr(flags, "backup_workers", 0) >= flags.workers:
        parse.error(
            f"--backup_workers {flags.backup_workers}: must be below --workers {flags.workers}, "
            "or an update would contain no gradient"
        )
    if len(getattr(flags, "learning_rates", range(flags.workers))) != flags.workers:
        parse.error(
            f"--learning_rates: got {len(flags.learning_rates)} for --workers {flags.workers}; "
            "give one for each"
        )
    for flag in sorted(parse.given & parse.unused):
        parse.error(f"{flag}: this example does not use it; leave it out")
    for worker in flags.delay or {}:
        if worker >= flags.workers:
            parse.error(f"--delay {worker}:...: the last worker is {flags.workers - 1}")
    if flags.link_mbit and getattr(flags, "network", None) == "host":
        parse.error("--link_mbit: needs a private network; leave --network out")
    _check_network(flags, defaults, parse)
    if Path(flags.data).suffix and not Path(flags.data).is_file():  # names have no suffix
        parse.error(f"--data: there is no file {flags.data}")
    if flags.data_url and flags.data not in parse.downloads:
        parse.error(f"--data_url: {flags.data} is not downloaded; leave the flag out")


def _check_network(flags: argparse.Namespace, defaults: dict, parse: Parser) -> None:
    """A gpt and the other networks need different data, and have different flags."""
    gpt = flags.model == "gpt"
    if gpt and not is_text(flags.data):
        parse.error(f"--model gpt: needs a text, not {flags.data}: add --data text")
    if is_text(flags.data) and not gpt:
        parse.error(f"--data {flags.data}: a text needs --model gpt, not {flags.model}")
    own = {f"--{name}" for name in ("layers", "heads", "width", "context", "target")
           if name not in defaults}  # fmt: skip
    for flag in sorted(parse.given & ({"--hidden", "--target_accuracy"} if gpt else own)):
        instead = {"--target": ": use --target_accuracy", "--target_accuracy": ": use --target"}
        parse.error(f"{flag}: --model {flags.model} has none" + instead.get(flag, "; leave it out"))
    if gpt and flags.width % flags.heads:
        parse.error(f"--heads {flags.heads}: must divide --width {flags.width}")
