"""The files around the code: spelling, style, workflows, forms, citation, changelog, hooks."""

import ast
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

from common.commands import doctor

SCHEMAS = {
    "vendor.github-workflows": ".github/workflows/*.yml",
    "vendor.github-issue-forms": ".github/ISSUE_TEMPLATE/*.yml",
    "vendor.citation-file-format": "CITATION.cff",
}


def passes(*command) -> None:
    """Runs a tool from this environment in the repository."""
    tool = Path(sys.executable).parent / command[0]
    done = subprocess.run([tool, *command[1:]], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("schema", SCHEMAS)
def test_files_fit_their_schema(schema):
    files = sorted(ROOT.glob(SCHEMAS[schema]))
    assert files
    passes("check-jsonschema", "--builtin-schema", schema, *files)


def test_workflows_are_safe():
    """For example: actions pinned by hash, minimal permissions, no injected text."""
    passes("zizmor", "--offline", "--quiet", ".github")


def test_hooks_are_valid():
    passes("pre-commit", "validate-config", ".pre-commit-config.yaml")


def test_spelling():
    passes("codespell")


def test_spelling_of_notebooks(tmp_path):
    notebooks = sorted(ROOT.glob("[!.]*/**/*.ipynb"))
    assert notebooks
    for number, path in enumerate(notebooks):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells)
        (tmp_path / f"{number}-{path.stem}.txt").write_text(text, encoding="utf-8")
    passes("codespell", tmp_path)


@pytest.mark.slow("installs proselint")
def test_style(tmp_path):
    """Of the pages. Not for these: straight quotes, "32x32", and rows of equal numbers."""
    needed = ROOT / "tests" / "requirements-prose.txt"
    if importlib.util.find_spec("proselint") is None:
        pip = [sys.executable, "-m", "pip", "install", "-q", "-r", needed]
        said = subprocess.run(pip, capture_output=True, text=True)
        if said.returncode:
            pytest.skip(f"proselint cannot be installed (pip install -r {needed.name})")
    off = dict.fromkeys(("typography", "dates_times", "lexical_illusions"), False)
    (tmp_path / "config.json").write_text(json.dumps({"checks": off}))
    pages = [*ROOT.glob("*.md"), *ROOT.glob("[!.]*/*.md")]
    passes("proselint", "check", "--config", tmp_path / "config.json", *pages)


def pins(file: str) -> set[tuple[str, str]]:
    """(package, version), for every Python."""
    return set(re.findall(r"^([\w.-]+)==([\w.]+)", (ROOT / file).read_text(), re.M))


def test_readers_install_nothing_that_only_tests_need():
    """And what both need has the same version in both files."""
    group = re.search(r"^tests = \[(.*?)^\]", (ROOT / "pyproject.toml").read_text(), re.M | re.S)[1]
    own = set(re.findall(r'"([\w-]+)', group))
    readers, tests = pins("common/requirements.txt"), pins("tests/requirements.txt")
    assert "pytest" in own and own <= {name for name, _ in tests}
    named = {name for name, _ in readers}
    assert own.isdisjoint(named | set(doctor.PACKAGES))
    assert {pin for pin in tests if pin[0] in named} <= readers


def test_one_version():
    """pyproject.toml, CITATION.cff and the newest section of the changelog name one version."""
    version = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.M)[1]
    cited = (ROOT / "CITATION.cff").read_text()
    changes = (ROOT / "docs/CHANGELOG.md").read_text(encoding="utf-8")
    number, date = re.findall(r"^## \[(\d.*)\] - ([\d-]+)$", changes, re.M)[0]
    assert number == version
    assert f"\nversion: {version}\n" in cited and f'\ndate-released: "{date}"\n' in cited


ROOMS = ("measure", "build", "tests")  # each may import from those before it


@pytest.mark.parametrize("room", ROOMS)
def test_no_room_imports_from_a_higher_one(room):
    higher = {path.stem for name in ROOMS[ROOMS.index(room) + 1 :]
              for path in (ROOT / name).glob("*.py")}  # fmt: skip
    for path in (ROOT / room).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            assert higher.isdisjoint(names), f"{path.relative_to(ROOT)}: {names}"
