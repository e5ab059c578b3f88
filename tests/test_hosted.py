"""Notebooks on hosts that have a Python of their own: what Colab and Binder would do."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import address
import nbformat
import notebooks
import pytest
from conftest import ROOT, environment
from machine import seconds

from common.teach import hosted

HOME = "https://github.com/someone/guide"


def test_what_is_needed_is_what_pyproject_says():
    packages = hosted.needed()
    text = (ROOT / "pyproject.toml").read_text().partition("dependencies = [")[2].partition("]")[0]
    assert [name + tested for name, tested in packages.items()] == [
        each.partition(";")[0] for each in re.findall('"(.+)"', text)
    ]
    assert all(hosted.version(name) for name in packages)


@pytest.mark.parametrize(
    ("have", "said"), [("2.21.0", ""), ("2.19.1", "This host has TensorFlow 2.19.1; ")]
)
def test_only_what_is_missing_is_installed(monkeypatch, capsys, have, said):
    """What is there stays as it is, in any version."""
    there = {"tensorflow": have, "numpy": "1.26"}
    ran = []

    def version(name):
        if name not in there:
            raise importlib.metadata.PackageNotFoundError
        return there[name]

    def run(command, check):
        ran.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(subprocess, "run", run)
    hosted.main()
    (command,) = ran
    asked = " ".join(command)
    assert asked.startswith(f"{sys.executable} -m pip install ") and "simpy>=" in asked
    assert "tensorflow>=" not in asked and "numpy" not in asked
    printed = capsys.readouterr().out
    assert printed.startswith(said) and bool(printed) == bool(said)


def test_an_address_is_written_into_each_notebook(monkeypatch, tmp_path):
    """The outputs of a cell that ran with the old one stay valid; those of an old cell do not."""
    names = [Path("AGN/AGN.ipynb"), Path("HogWild/HogWild.ipynb")]
    for name in names:
        (tmp_path / name).parent.mkdir()
        shutil.copy(ROOT / name, tmp_path / name)
    changed = nbformat.read(tmp_path / names[1], as_version=4)
    changed.metadata["executed_code"] = "of an older cell"
    nbformat.write(changed, tmp_path / names[1])
    monkeypatch.setattr(notebooks, "ROOT", tmp_path)
    monkeypatch.setattr(notebooks, "everything", lambda: names)
    for new in (HOME, HOME + "-2"):
        address.write(new)
        assert address.read() == new
    fresh, old = (nbformat.read(tmp_path / name, as_version=4) for name in names)
    assert fresh.metadata["executed_code"] == notebooks.code_hash(fresh)
    assert old.metadata["executed_code"] == "of an older cell"
    assert f"git clone --depth 1 {HOME}-2 all" in next(
        cell.source for cell in fresh.cells if cell.cell_type == "code"
    )


def test_every_notebook_finds_the_collection_with_the_same_lines():
    found = set()
    for path in notebooks.everything():
        cells = nbformat.read(ROOT / path, as_version=4).cells
        source = next(cell.source for cell in cells if cell.cell_type == "code")
        found.add(source[source.index("places = ") : source.index("assert places")])
    (lines,) = found
    assert address.CLONE.search(lines)


def test_a_wrong_address_is_refused():
    for wrong in ([], ["github.com/someone/guide"], [HOME, HOME]):
        command = [sys.executable, ROOT / "build/address.py", *wrong]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 1 and "build/address.py https://" in done.stderr


def test_binder_installs_what_is_pinned():
    lines = (ROOT / ".binder/requirements.txt").read_text().splitlines()
    (file,) = [line.removeprefix("-r ") for line in lines if line.startswith("-r ")]
    assert (ROOT / ".binder" / file).resolve() == ROOT / "common/requirements.txt"
    assert re.fullmatch(r"python-3\.1[0-3]\n", (ROOT / ".binder/runtime.txt").read_text())


@pytest.mark.slow("clones the collection, and executes a notebook in it")
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this copy of the collection has no Git")
def test_a_notebook_that_is_alone_on_colab_gets_the_rest(tmp_path):
    """It stands in an empty folder, and `google.colab` can be imported. Elsewhere, it says what to
    do."""
    here, host = tmp_path / "content", tmp_path / "host"
    here.mkdir()
    (host / "google" / "colab").mkdir(parents=True)
    (host / "sitecustomize.py").write_text(
        "import os, sys, types\n"
        "if os.environ.get('COLAB'):\n"
        "    sys.modules['google.colab'] = types.ModuleType('google.colab')\n"
    )
    notebook = nbformat.read(ROOT / "HogWild/HogWild.ipynb", as_version=4)
    first = next(cell for cell in notebook.cells if cell.cell_type == "code")
    first.source = address.CLONE.sub(f"file://{ROOT}", first.source)
    first.source += "\nrun = notebook.run('HogWild', '--steps', 50)\nassert run.parameters"
    notebook.cells = [first]
    nbformat.write(notebook, here / "HogWild.ipynb")
    command = [sys.executable, "-m", "papermill", "--cwd", here, "-k", "python3",
               here / "HogWild.ipynb", here / "done.ipynb"]  # fmt: skip
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    for colab in ("", "1"):
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds(180), check=False,
            env=environment(PYTHONPATH=str(host), COLAB=colab, PATH=path),
        )  # fmt: skip
        assert (done.returncode == 0) == bool(colab), done.stderr
        assert ("Clone the whole collection" in done.stderr) == (not colab)
    assert (here / "all" / "common").is_dir()
