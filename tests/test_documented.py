"""common/README.md describes every file, key, array and scalar of a run, and no others."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT, environment
from machine import seconds
from test_tensorboard import shown

from common.launch import network, record

TEXT = (ROOT / "common" / "README.md").read_text().partition("## What a run leaves")[2]


def tables(heading: str) -> list[list[list[str]]]:
    """The tables below a heading, as rows of cells, without the first two lines."""
    _, _, rest = f"### `files`{TEXT}".partition(f"### {heading}\n" if heading else "### `files`")
    section = re.split(r"^### ", rest, flags=re.M)[0]
    found = re.findall(r"(?:^\|.*\|\n)+", section, re.M)
    return [
        [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()[2:]]
        for table in found
    ]


def names(rows: list[list[str]], column: int = 0) -> set[str]:
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row[column])}


def keys(*paths) -> set[str]:
    """The keys of .jsonl files, which must be the same in all lines."""
    first, *others = [line for path in paths for line in record.Tail(path).read()]
    assert all(line.keys() == first.keys() for line in others)
    return set(first)


def files(folder) -> set[str]:
    """File names as the first table writes them."""
    found = set()
    for path in folder.iterdir():
        inner = [f"{path.name}/{one.name}" for one in path.iterdir()] if path.name == "logs" else []
        for name in inner or [path.name]:
            name = re.sub(r"(events-worker)-\d+", r"\1-K", name)
            found.add(re.sub(r"(?<=[-/])(?:ps|worker|chief)-\d+", "JOB-K", name))
    return found


@pytest.fixture
def alone(tmp_path):
    """Runs one task by hand, without the launcher; returns its results folder."""
    command = [sys.executable, ROOT / "Non-Distributed-Setup" / "train.py", "--steps", 5]
    env = environment()
    env.pop("TASK_RESTARTS", None)
    folder = tmp_path / "alone"
    command += ["--model", "cnn", "--results", folder]
    subprocess.run([*map(str, command)], env=env, check=True, timeout=seconds(60))
    return folder


def test_what_two_runs_and_a_task_by_hand_write(run, default_run, alone):
    hogwild = default_run("HogWild")
    rounds = run("Synchronous-SGD", "--steps", 20, "--model", "linear")
    found = files(hogwild.results) | files(rounds.results) | files(alone)
    search = {"trials.jsonl", "members.npz"}
    private = set() if network.can_be_private() else {"network.jsonl"}
    assert found | {"network.jsonl"} == names(tables("")[0]) - search
    assert private <= found

    for finished in (hogwild, rounds):
        where = finished.results
        assert keys(where / "events-worker-0.jsonl") == names(tables("`events-worker-K.jsonl`")[0])
        assert keys(where / "evaluations.jsonl") == names(tables("`evaluations.jsonl`")[0])
        assert keys(where / "launches.jsonl") == names(tables("`launches.jsonl`")[0])
        if private:
            assert keys(where / "network.jsonl") == names(tables("`network.jsonl`")[0])
        whole, _ = tables("`summary.json`")
        assert set(finished.summary) == names(whole)
        for key in ("staleness", "versions"):
            (row,) = [row for row in whole if row[0] == f"`{key}`"]
            assert set(finished.summary[key]) == names([row], 1)
        scalars, _ = shown(where / "tensorboard" / "worker-0")
        assert set(scalars) == names(tables("TensorBoard")[0])
        scalars, _ = shown(where / "tensorboard" / "test")
        assert set(scalars) == {"test_accuracy", "test_loss"}
    assert keys(rounds.results / "updates.jsonl") == names(tables("`updates.jsonl`")[0])
    tasks = {key for f in (hogwild, rounds) for task in f.summary["tasks"] for key in task}
    assert tasks == names(tables("`summary.json`")[1])
    part = json.loads((alone / "task-worker-0.json").read_text())
    assert set(part) == names(tables("`task-JOB-K.json`")[0])

    # The arrays: names in order, and the number of dimensions that the text gives.
    (rows,) = tables("Arrays")
    described: dict[str | None, list] = {}
    model = None
    for file, array, shape in rows:
        if file:  # else the row above continues
            model = next(iter(re.findall(r"`(linear|mlp|cnn)`", file)), None)
        lists = re.findall(r"\[[^\[\]]*\]", shape)
        pairs = zip(re.findall(r"`(\w+)`", array), lists)
        described.setdefault(model, []).extend((a, text.count(",") + 1) for a, text in pairs)
    for model, where in (("mlp", hogwild.results), ("linear", rounds.results), ("cnn", alone)):
        with np.load(where / "parameters.npz") as file:
            assert [(name, file[name].ndim) for name in file.files] == described[model]
            assert {file[name].dtype for name in file.files} == {np.dtype("float32")}


@pytest.mark.slow("two runs without session.training")
def test_keys_that_a_custom_loop_adds(default_run):
    base, more = map(names, tables("`events-worker-K.jsonl`"))
    learner, search = default_run("Actor-Learner"), default_run("One-Network-per-Device")
    seen = set()
    for finished in (learner, search):
        # All workers' files: one that starts late may find the work already done.
        found = keys(*finished.results.glob("events-worker-*.jsonl"))
        assert base <= found
        seen |= found - base
    assert seen == more
    assert {"trials.jsonl", "members.npz"} <= files(search.results)
    with np.load(search.results / "members.npz") as file:
        assert all(re.fullmatch(r"trial_\d+/\w+", name) for name in file.files)
