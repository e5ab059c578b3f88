"""The rooms of common/: nothing climbs from a lower room to a higher one or goes in circles, what
loads slowly is loaded late and nothing else, no module knows a single example, and `common.told`
lists every convention."""

import ast
import graphlib
import re
import subprocess
import sys

import pytest
from conftest import ROOT, environment

import common.told
from common.flags import EVERYWHERE, IF_NAMED
from common.pictures import curves
from common.told import about, example

COMMON = ROOT / "common"
# Lowest first; "" are the modules beside the rooms, which worker scripts name.
ROOMS = [
    "record", "datasets", "told", "graph", "", "training", "session", "pictures", "page",
    "launch", "commands", "teach",
]  # fmt: skip


def modules() -> dict[str, ast.Module]:
    """`common.record.trace` -> its syntax tree, for every module of common/."""
    found = {}
    for path in sorted(COMMON.rglob("*.py")):
        words = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(words[:-1] if words[-1] == "__init__" else words)
        found[name] = ast.parse(path.read_text(encoding="utf-8"))
    return found


MODULES = modules()


def imported(name: str) -> set[str]:
    """The modules of common/ that a module imports, wherever the import stands."""
    found = set()
    for node in ast.walk(MODULES[name]):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            inner = {f"{node.module}.{each.name}" for each in node.names}
            known = inner & MODULES.keys()
            found |= known | ({node.module} if known != inner else set())
    return {each for each in found & MODULES.keys() if each != "common"} - {name}


def room(name: str) -> str:
    parts = name.split(".")
    if name == "common.session":  # the only one that stands on training
        return "session"
    return parts[1] if len(parts) > 2 or (COMMON / parts[-1]).is_dir() else ""


def test_every_room_has_a_place():
    assert {room(name) for name in MODULES if name != "common"} == set(ROOMS)


@pytest.mark.parametrize("name", sorted(MODULES.keys() - {"common"}))
def test_nothing_climbs(name):
    own = ROOMS.index(room(name))
    climbs = [each for each in imported(name) if ROOMS.index(room(each)) > own]
    assert not climbs, f"{name} is in a lower room than {', '.join(climbs)}"


def test_nothing_goes_in_circles():
    order = graphlib.TopologicalSorter({name: imported(name) for name in MODULES})
    assert len(list(order.static_order())) == len(MODULES)  # raises CycleError


@pytest.mark.parametrize("name", sorted(MODULES))
def test_no_module_is_loaded_through_a_string(name):
    calls = [node for node in ast.walk(MODULES[name]) if isinstance(node, ast.Call)]
    loads = [node for node in calls if ast.unparse(node.func).endswith("import_module")]
    assert not [call for call in map(ast.unparse, loads) if "common." in call]


# What may be imported inside a function, and why.
SLOW = {
    "common.cluster": "TensorFlow: seconds",
    "common.pictures.curves": "Matplotlib: half a second",
    "common.launch.screen": "rich: a quarter of a second",
    **dict.fromkeys(
        (
            f"common.datasets.{name}"
            for name in ("cifar10", "digits", "mnist", "mnist1d", "npz", "synthetic", "text")
        ),
        "NumPy: a tenth of a second, before the tasks start",
    ),
    "numpy": "a tenth of a second, before the tasks start",
    "rich": "a quarter of a second",
    "mnist1d": "a second, only until its signals are generated",
    "grpc": "a tenth of a second, only if a step waits for ever",
    "pyroute2": "a third of a second, only for a slow link",
}
# The doctor says what is missing or too old: then it must still run itself.
MAY_BE_MISSING = {
    "common.commands.doctor": {"packaging.requirements", "psutil", "common.launch.network"}
}


def late_imports(name: str) -> list[ast.Import | ast.ImportFrom]:
    """The imports inside functions."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    functions = [node for node in ast.walk(MODULES[name]) if isinstance(node, kinds)]
    inner = [node for function in functions for node in ast.walk(function)]
    return [node for node in inner if isinstance(node, ast.Import | ast.ImportFrom)]


@pytest.mark.parametrize("name", sorted(MODULES))
def test_only_what_is_slow_is_imported_late_and_a_comment_says_so(name):
    for node in late_imports(name):
        names = [each.name for each in node.names]
        if isinstance(node, ast.ImportFrom):
            modules = {f"{node.module}.{each}" for each in names}
            names = modules if modules <= MODULES.keys() else {node.module}
        assert {*names} <= SLOW.keys() | MAY_BE_MISSING.get(name, set())
        path = COMMON.parent.joinpath(*name.split("."))
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        lines = path.read_text(encoding="utf-8").splitlines()[node.lineno - 2 : node.lineno]
        assert any("#" in line for line in lines), lines


EXAMPLES = [path.parent for path in sorted(ROOT.glob("[!.]*/ps.py"))]


def own_flags() -> dict[str, str]:
    """The flags that only one example has -> its name."""
    known = EVERYWHERE.keys() | IF_NAMED.keys() | {"chief"}
    found: dict[str, set[str]] = {}
    for folder in EXAMPLES:
        for flag in example.example_of(example.main_script(folder))[0].keys() - known:
            found.setdefault(flag, set()).add(folder.name)
    return {flag: next(iter(names)) for flag, names in found.items() if len(names) == 1}


# Files, and keys of events and summaries, that only one example writes.
OWN = {
    "trials.jsonl", "members.npz", "client.json", "clocks.jsonl", "transfers.json",
    "trial", "return", "returns", "queued", "test_return",
}  # fmt: skip


def flags_read(tree: ast.Module) -> set[str]:
    """`flags.NAME`, `options.NAME`, `getattr(flags, "NAME")`: every NAME."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and re.search(
            "(flags|options)$", ast.unparse(node.value)
        ):
            found.add(node.attr)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr"):
            found.add(ast.unparse(node.args[1]).strip("'"))
    return found


@pytest.mark.parametrize("name", sorted(MODULES))
def test_no_module_knows_a_single_example(name):
    flags = own_flags()
    assert {"log_frequency", "memory_fraction", "split"} <= flags.keys()
    assert not flags_read(MODULES[name]) & flags.keys()
    constants = [node for node in ast.walk(MODULES[name]) if isinstance(node, ast.Constant)]
    assert not {node.value for node in constants} & OWN


@pytest.mark.parametrize("folder", EXAMPLES, ids=lambda folder: folder.name)
def test_what_an_example_says_about_itself_can_be_read(folder):
    """Its flags are those of its `DEFAULTS`."""
    defaults, _ = example.example_of(example.main_script(folder))
    assert about.read(folder).flags.keys() <= defaults.keys()
    curves.read(folder)


def test_the_launcher_loads_nothing_slow_before_it_starts_the_tasks():
    code = """
import sys
from pathlib import Path
from common.launch import launcher
from common.told import about
for folder in map(Path, sys.argv[1:]):
    about.read(folder)
print(*{"tensorflow", "matplotlib", "rich", "numpy"} & sys.modules.keys())
"""
    command = [sys.executable, "-c", code, *map(str, EXAMPLES)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment())
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


def test_an_example_that_says_nothing_is_an_error(tmp_path, capsys):
    (tmp_path / "about.py").write_text("about = 3")
    with pytest.raises(SystemExit) as ended:
        about.read(tmp_path)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert re.fullmatch(r"error: .*about\.py must say ABOUT = About\(\.\.\.\): .+\n", said)


def environment_variables() -> dict[str, str]:
    """The environment variables that scripts read or set -> a file that does."""
    found = {}
    for path in [*COMMON.rglob("*.py"), *ROOT.glob("[A-Z]*/*.py")]:
        for line in path.read_text(encoding="utf-8").splitlines():
            if re.search(r"\benv\b|environ", line):
                names = re.findall(r"""["']([A-Z][A-Z0-9_]{2,})["']""", line)
                found |= dict.fromkeys(names, str(path.relative_to(ROOT)))
    return found


def test_the_page_of_conventions_lists_every_environment_variable():
    found = environment_variables()
    assert {"TASK_RESTARTS", "TF_CONFIG", "NO_CURVES", "DATA_DIR", "SLURM_JOB_ID"} <= found.keys()
    listed = set(re.findall(r"\b[A-Z][A-Z0-9_]{2,}\b", common.told.__doc__))
    missing = {name: path for name, path in found.items() if name not in listed}
    assert not missing
