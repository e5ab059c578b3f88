"""The page "Who waits?": its simulation does what the one in Python does."""

import itertools
import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
import schemes
import simulate
from cluster import Cluster
from conftest import ROOT, seconds

PAGE = ROOT / "common" / "page"
NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="needs node, which runs the page's modules")


# They move a parameter as far if its gradient is 0, up to rounding, as if it is large.
NOISY = ("Sign-SGD", "DiLoCo", "Async-DiLoCo")


class Unwatched(Cluster):
    """Nobody evaluates over the link."""

    def confirm(self, k, told):
        yield self.wait(told)


class Written:
    """Keeps the events of each worker, and the updates."""

    def __init__(self):
        self.lines = {}

    def write(self, name: str, line: dict) -> None:
        self.lines.setdefault(name, []).append(line)

    def show(self, *_) -> None:
        pass


def in_python(options) -> dict:
    written = Written()
    cluster, journal = simulate.simulate(options, make_cluster=Unwatched, report=written)
    sent = sum(link.total_bytes for link in {*cluster.down, *cluster.up})
    return {"lines": written.lines, "w": cluster.w, "staleness": journal.staleness,
            "test": journal.evaluations[-1], "dropped": sum(journal.dropped),
            "megabytes": sent / 1e6}  # fmt: skip


def on_the_page(every) -> list[dict]:
    """The same flags as the page's settings would give."""
    flags = [vars(options) | {"delay": options.delay or {}} for options in every]
    process = subprocess.run(
        [NODE, ROOT / "tests" / "page_runs.mjs"], input=json.dumps(flags, default=str),
        capture_output=True, text=True, timeout=seconds(120), check=False,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


def same(options, page: dict) -> None:
    python = in_python(options)
    for k, mine in enumerate(page["steps"]):
        lines = python["lines"].get(f"events-worker-{k}", [])
        assert len(mine) == len(lines)
        for ours, theirs in zip(mine, lines):
            assert (ours["number"], ours["pulledAt"], ours["staleness"]) == (
                theirs["global_step"], theirs["pulled_at"], theirs["staleness"])  # fmt: skip
            times = [ours["told"], ours["counted"], ours["got"] - ours["asked"]]
            there = [theirs["time"], theirs["counted"], theirs["pull"]]
            np.testing.assert_allclose(times, there, rtol=1e-9, atol=1e-9)
            assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-3, abs=1e-4)
    assert {int(s): n for s, n in page["staleness"].items()} == dict(python["staleness"])
    assert len(page["dropped"]) == python["dropped"]
    assert page["megabytes"] == pytest.approx(python["megabytes"], rel=1e-9)
    equal = np.isclose(page["w"], python["w"], rtol=1e-3, atol=1e-5)
    noise = 5 if options.scheme in NOISY else 1
    assert equal.mean() > 0.9 if noise > 1 else equal.all()
    found, there = page["test"], python["test"]
    assert found["accuracy"] == pytest.approx(there["test_accuracy"], abs=0.006 * noise)
    assert found["loss"] == pytest.approx(there["test_loss"], rel=1e-3 * noise)


SETTINGS = [
    {"seed": 0},
    {"seed": 1, "delay": {1: 0.03}, "link_mbit": 20, "request": 0.001},
    {"seed": 2, "ps": 3, "link_mbit": 5, "spread": 0.5, "workers": 5},
]


@needs_node
@pytest.mark.parametrize("model", ["linear", "mlp"])
@pytest.mark.parametrize("scheme", [name for name in schemes.SCHEMES if name != "Sparse-Embeddings"])
def test_the_page_simulates_what_python_simulates(scheme, model):
    """Every event of every run: who, when, from which count, how stale; and what is learned."""
    own = schemes.SCHEMES[scheme].defaults
    window = {"window": 4} if "window" in own else {}
    steps = 30 if schemes.SCHEMES[scheme].worker == "synchronous" else 100
    every = [
        simulate.options(**{"scheme": scheme, "model": model, "workers": 4, "steps": steps,
                            "batch_size": 20, "hidden": 16, **window, **more})  # fmt: skip
        for more in SETTINGS
    ]
    for options, page in zip(every, on_the_page(every), strict=True):
        same(options, page)


@needs_node
@pytest.mark.parametrize(
    "flags",
    [
        {"scheme": "Synchronous-SGD", "backup_workers": 2, "workers": 6},
        {"scheme": "DiLoCo", "outer": "momentum", "inner": "sgd", "window": 3},
        {"scheme": "DC-ASGD", "adaptive": True},
        {"scheme": "Synchronous-SGD-different-learning-rates",
         "learning_rates": [0.1, 0.2, 0.1, 0.05]},
        {"scheme": "Stale-Synchronous-Parallel", "max_staleness": 0, "delay": {0: 0.05}},
        {"scheme": "AEASGD", "delay": {2: 0.02}, "link_mbit": 1, "window": 5},
        {"scheme": "HogWild", "duplex": True, "link_mbit": 2, "spread": 1.5},
    ],
    ids=lambda flags: flags["scheme"],
)  # fmt: skip
def test_so_it_does_with_the_flags_of_a_scheme(flags):
    options = simulate.options(**{"workers": 4, "steps": 60, "model": "linear", **flags})
    (page,) = on_the_page([options])
    same(options, page)


def test_what_the_page_has_from_python_is_of_today():
    """The digits, and the formulas of the docstrings."""
    command = [sys.executable, ROOT / "build" / "page_data.py", "--check"]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr


def test_the_page_is_small():
    """All files together; and none asks another host for anything."""
    files = [path for path in PAGE.iterdir() if path.suffix in (".js", ".css", ".html")]
    assert sum(path.stat().st_size for path in files) < 300_000
    for path, word in itertools.product(files, ("<script src=\"http", "@import url", "fetch(\"http")):
        assert word not in path.read_text()
