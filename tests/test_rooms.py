"""The rooms of common/: nothing climbs from a lower room to a higher one or goes in circles."""

import ast
import graphlib

import pytest
from conftest import ROOT

COMMON = ROOT / "common"
# Lowest first; "" are the modules beside the rooms, which worker scripts name.
ROOMS = [
    "record", "datasets", "told", "graph", "", "training", "session", "pictures", "launch",
    "commands", "teach",
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
    """`datasets.reader` loads the module of one data set: a name from a list of names."""
    calls = [node for node in ast.walk(MODULES[name]) if isinstance(node, ast.Call)]
    loads = [node for node in calls if ast.unparse(node.func).endswith("import_module")]
    literal = [ast.unparse(node) for node in loads if ast.unparse(node.args[0])[:1] in "'\""]
    assert not [call for call in literal if "common." in call]
