"""Prints a run of an example as Kubernetes objects; the templates are in `manifests/`.

    python -m common.commands.kubernetes EXAMPLE [flags] > run.yaml

Besides the flags below, it takes all flags of the example (bash EXAMPLE/run.sh --help), and checks
them as run.sh does.
"""

import argparse
import json
import math
import re
import string
import sys
from pathlib import Path

from common import fail
from common.launch import launcher
from common.told import converters as to
from common.told import example
from common.told.parser import Parser

ROOT = Path(__file__).resolve().parents[2]
TFJOB = {"ps": "PS", "worker": "Worker", "chief": "Chief"}


def _fits(pattern: str, wanted: str):
    """Makes a converter that accepts what the pattern matches; `wanted` describes that."""

    def convert(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise argparse.ArgumentTypeError(f"must be {wanted}, not {text!r}")
        return text

    return convert


# With the longest ending, such as -worker-99999, it is still the name of a host.
NAME = _fits(
    "[a-z]([-a-z0-9]{0,48}[a-z0-9])?",
    "at most 50 lower-case letters, digits and -, the first one a letter, the last one not a -",
)
CLAIM = _fits(r"(?=.{1,253}$)[a-z0-9]+((\.|-+)[a-z0-9]+)*", "the name of a PersistentVolumeClaim")
CPU = _fits(r"(?=.*[1-9])\d+(\.\d+)?m?", "a number of cores such as 2 or 500m")
MEMORY = _fits(r"(?=.*[1-9])\d+(\.\d+)?([kMGT]|[KMGT]i)", "an amount such as 2Gi or 500M")
PORT = to.number(int, "a whole number from 1 to 65535", lambda value: 0 < value < 65536)


def main() -> None:
    """Prints the manifests; exits with a one-line error and code 2 if a flag is wrong."""
    parser = Parser(
        prog="python -m common.commands.kubernetes",
        description=__doc__,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.usage = f"{parser.prog} EXAMPLE [flags]"
    for flag, kind, default, metavar, text in (
        ("--name", NAME, None, "NAME", "the run's name (default: the example's, in lower case)"),
        ("--image", _fits(r"[^\s\"\\$]+", "an image"), "distributed-tensorflow:1", "IMAGE",
         "made with Several-Machines/Dockerfile (default: %(default)s)"),
        ("--claim", CLAIM, "results", "CLAIM", "a PersistentVolumeClaim, to which the run writes a "
         "folder with its name (default: %(default)s)"),
        ("--cpu", CPU, "1", "N", "cores for each task (default: %(default)s)"),
        ("--memory", MEMORY, "2Gi", "SIZE", "memory for each task (default: %(default)s)"),
        ("--port", PORT, 2222, "P", "the port of every task (default: %(default)s)"),
    ):  # fmt: skip
        parser.add_argument(flag, type=kind, default=default, metavar=metavar, help=text)
    text = "a TFJob for Kubeflow's Training Operator, instead of a Job and a Service"
    parser.add_argument("--tfjob", action="store_true", help=text)
    text = "the Job that makes the table and curves of the finished run"
    parser.add_argument("--collect", action="store_true", help=text)
    own, rest = parser.parse_known_args()
    if not rest or rest[0].startswith("-") or rest[0] != sys.argv[1]:
        parser.error("name an example first, as in: python -m common.commands.kubernetes HogWild")
    for word in rest:
        if word == "--open":
            parser.error("--open: the run is not on this machine; leave it out")
        if word.partition("=")[0] in ("--results", "--network", "--link_mbit"):
            parser.error(
                f"{word}: every run writes to --claim and uses the cluster's network; leave it out"
            )
    print(launcher.checked(rest, lambda *run: _manifests(own, *run)), end="")


def _manifests(own, folder: Path, script: Path, options, arguments: list[str]) -> str:
    """All objects of a run as one text."""
    if folder.parent != ROOT:
        fail(f"{folder} is not in {ROOT}: an image holds only the examples there")
    for name in sorted(vars(own).keys() & vars(options).keys()):
        fail(f'DEFAULTS["{name}"]: this command has a --{name} already; choose another name')
    try:
        own.name = own.name or NAME(folder.name.lower())
    except argparse.ArgumentTypeError as error:
        fail(f"the name of the folder {error}: choose another one with --name")
    most = 2**31 - 1
    values = vars(own) | {
        "timeout": min(most, math.ceil(options.timeout)),
        "max_restarts": min(most, options.max_restarts),
    }
    if own.collect:
        values["command"] = _args(["-m", "common.commands.collect", f"/results/{own.name}"])
        return _filled("collect", values | {"pod": _filled("pod", values)})
    arguments = [*arguments, "--results", f"/results/{own.name}"]
    data = Path(options.data)
    if data.suffix and any(word.partition("=")[0] == "--data" for word in arguments):
        if data.parent.parent != ROOT:
            fail(f"--data {data}: move it to {folder}, since an image holds only the files there")
        arguments += ["--data", str(data.relative_to(ROOT))]
    scripts = {
        job: tasks for job, tasks in example.scripts_of(folder, script, options).items() if tasks
    }
    make = _tfjob if own.tfjob else _job
    return make(own, scripts, arguments, values, example.is_alone(script))


def _job(own, scripts: dict, arguments: list[str], values: dict, alone: bool) -> str:
    """An Indexed Job: first come the pods of the workers, then those of the ps, then the chief."""
    lines, first = ["k=$JOB_COMPLETION_INDEX"], 0
    for job in sorted(scripts, key=("worker", "ps", "chief").index):
        tasks, k = scripts[job], "$k" if not first else f"$((k - {first}))"
        end = first + len(tasks)
        hosts = [f"{own.name}-{i}.{own.name}:{own.port}" for i in range(first, end)]
        arguments += [] if alone else [f"--{job}_hosts", ",".join(hosts)]
        task = f"{tasks[0].relative_to(ROOT)} --job_name {job} --task_index {k}"
        lines.append(f'[ $k -lt {end} ] && exec python {task} "$@"')
        first = end
    command = ["command:", "  - tini", "  - --", "  - sh", "  - -c", "  - |"]
    command += [*(f"    {line}" for line in lines), "  - task", _args(arguments)]
    values |= {"tasks": first, "command": "\n".join(command)}
    job = _filled("job", values | {"pod": _filled("pod", values)})
    others = [] if alone else [_filled(name, values) for name in ("service", "networkpolicy")]
    return "---\n".join([*others, job])


def _tfjob(own, scripts: dict, arguments: list[str], values: dict, alone: bool) -> str:
    """A TFJob. Its port's name tells the operator which port to write to TF_CONFIG."""
    replicas = []
    for job, tasks in scripts.items():
        command = _args([str(tasks[0].relative_to(ROOT)), *arguments])
        command += f"\nports:\n  - {{name: tfjob-port, containerPort: {own.port}}}"
        mine = values | {"kind": TFJOB[job], "count": len(tasks), "command": command}
        replicas.append(_filled("replica", mine | {"pod": _filled("pod", mine)}))
    job = _filled("tfjob", values | {"replicas": "".join(replicas)})
    return "---\n".join([*([] if alone else [_filled("networkpolicy", values)]), job])


def _args(words: list[str]) -> str:
    """The arguments in YAML, with a line for each flag. Kubernetes reads `$$` as `$`."""
    lines: list[list[str]] = []
    for word in words:
        if word.startswith("--") or not lines:
            lines.append([])
        lines[-1].append(json.dumps(word.replace("$", "$$"), ensure_ascii=False))
    return "\n".join(["args: [", *(f"  {', '.join(line)}," for line in lines), "]"])


def _filled(name: str, values: dict) -> str:
    """A template with its values; one of several lines is indented like its place."""
    text = Path(__file__).with_name("manifests").joinpath(f"{name}.yaml").read_text()
    lines = []
    for line in text.splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        filled = string.Template(line).substitute(values).rstrip("\n")
        lines.append(filled.replace("\n", f"\n{indent}"))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
