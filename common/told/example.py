"""Reads what an example declares about itself, without running it."""

import ast
from pathlib import Path

from common import fail


def main_script(folder: Path) -> Path:
    """The script with the training loop: chief.py if there is one, else worker.py or train.py."""
    for name in ("chief.py", "worker.py", "train.py"):
        if (folder / name).is_file():
            return folder / name
    fail(f"{folder} is not an example folder: it has no chief.py, worker.py or train.py")


def chosen_script(folder: Path, flags, defaults: dict) -> Path:
    """The script to run, which a flag can choose: `--mode towers` selects towers.py, if `DEFAULTS`
    lists the choices of `mode`; `--dense`, on or off, selects dense.py; `--threads N` selects
    threads.py."""
    return _chosen(folder, flags, defaults) or main_script(folder)


def _chosen(folder: Path, flags, defaults: dict) -> Path | None:
    """The script that a flag chooses, if any."""
    own = [name for name, default in defaults.items() if isinstance(default, tuple)]
    words = [getattr(flags, name) for name in own if name not in ("data", "model")]
    words += [
        name for name, default in defaults.items() if default is False and getattr(flags, name)
    ]
    if getattr(flags, "threads", None):
        words.append("threads")
    scripts = [path for word in words if (path := folder / f"{word}.py").is_file()]
    if len(scripts) > 1:
        names = " and ".join(path.name for path in scripts)
        fail(f"{names} cannot both run: give only one of the flags that choose them")
    return scripts[0] if scripts else None


def check_chosen(script: Path, flags, defaults: dict) -> None:
    """Exits with a one-line error if the flags of a script, started by hand, choose another one."""
    chosen = _chosen(script.resolve().parent, flags, defaults)  # None in a folder of other scripts
    if chosen and chosen.name != script.name and chosen != main_script(chosen.parent):
        by = [name for name in defaults if getattr(flags, name, None) == chosen.stem]
        said = f"--{by[0]} {chosen.stem}" if by else f"--{chosen.stem}"
        fail(f"{script.name} is not the script for {said}: start {chosen.name}")


def job_of(script: Path) -> str:
    """`chief` if the script's `DEFAULTS` say `"chief": 1`, else `worker`."""
    return "chief" if example_of(script)[0].get("chief") else "worker"


def is_alone(script: Path) -> bool:
    """Whether one process runs everything: all replicas, and no server."""
    return example_of(script)[0].get("ps", 1) == 0


def scripts_of(folder: Path, script: Path, options) -> dict[str, list[Path]]:
    """Job -> the script of each of its tasks, for the chosen script and a complete command line."""
    workers = 1 if is_alone(script) else options.workers
    has_chief = job_of(script) == "chief"
    return {
        "ps": [folder / "ps.py"] * options.ps,
        "worker": [folder / "worker.py" if has_chief else script] * workers,
        "chief": [script] if has_chief else [],
    }


def example_of(script: Path) -> tuple[dict, str]:
    """An example's `DEFAULTS` and its docstring, read without running the script."""
    tree = ast.parse(script.read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "DEFAULTS":
            try:
                defaults = ast.literal_eval(node.value)
            except ValueError:
                break
            return defaults, ast.get_docstring(tree) or ""
    fail(f"{script} has no DEFAULTS = {{...}} with literal values: copy one from another example")


def same_defaults(shown: dict, script: Path) -> dict:
    """The script's `DEFAULTS`, which must equal the main script's: `--help` shows those."""
    own, _ = example_of(script)
    words = {name for name, default in shown.items() if isinstance(default, tuple)}
    for name in sorted((shown.keys() | own.keys()) - {"workers", "ps", "chief", "threads"} - words):
        if shown.get(name) != own.get(name):
            main = main_script(script.parent).name
            fail(f'{script}: DEFAULTS["{name}"] must be the same as in {main}')
    return own
