"""How much there is to read in a worker script, and how soon it starts."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, environment
from machine import seconds

from common.record import trace


def lines_of(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


@pytest.mark.parametrize(("example", "most"), [("HogWild", 48), ("Synchronous-SGD", 75)])
def test_a_worker_script_is_short(example, most):
    assert lines_of(ROOT / example / "worker.py") <= most


def test_a_worker_script_names_few_helpers():
    """Counts the attributes of common/, of the task and of the session that it uses."""
    tree = ast.parse((ROOT / "HogWild" / "worker.py").read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    modules = {name.name for node in imports if node.module == "common" for name in node.names}
    assert modules
    names = {
        f"{node.value.id}.{node.attr}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        if node.value.id in modules | {"task", "sess"}
    }
    assert len(names) <= 17, sorted(names)


def test_workers_start_together(run):
    """The run is short, and both workers contribute to it."""
    delay = seconds(0.02)  # long enough that the scheduling of cores does not matter
    finished = run("HogWild", "--steps", 50, "--delay", f"0:{delay},1:{delay}")
    assert finished.summary["global_step"] == 50
    assert min(len(finished.events(0)), len(finished.events(1))) >= 10
    first = [finished.events(k)[0] for k in (0, 1)]
    assert abs(trace.began(first[0]) - trace.began(first[1])) < seconds(1)


def test_keras_loads_on_first_use():
    """Keras takes a third of TensorFlow's import time, and few workers need it."""
    code = """
import os, sys
from common import cluster
import tensorflow as tf
print("keras" in sys.modules, "sklearn" in sys.modules, "TF_USE_LEGACY_KERAS" in os.environ)
print(tf.keras.layers.Dense.__module__)
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                           cwd=ROOT, env=environment()).stdout  # fmt: skip
    assert shown.split() == ["False", "False", "False", "keras.src.layers.core.dense"]
