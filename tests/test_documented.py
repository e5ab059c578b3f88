"""common/README.md describes the files, keys, arrays and scalars of the runs made here, and no
others: two schemes, a task started by hand, and the examples that leave more; also the arrays of
networks that only one example has. It says more, such as the scalars of one example: not tested."""

import argparse
import importlib.util
import json
import re
import subprocess
import sys

import numpy as np
import pytest
import rebuilt
import tensorflow.compat.v1 as tf
from conftest import ROOT, environment
from machine import seconds
from test_tensorboard import shown

from common.launch import network
from common.record import results
from common.training import checkpoints

TEXT = (ROOT / "common" / "README.md").read_text().partition("## What a run leaves")[2]
OF_ONE_EXAMPLE = {"trials.jsonl", "members.npz", "client.json", "clocks.jsonl", "transfers.json"}


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
    first, *others = [line for path in paths for line in results.Tail(path).read()]
    assert all(line.keys() == first.keys() for line in others)
    return set(first)


def files(folder) -> set[str]:
    """File names as the first table writes them."""
    found = set()
    for path in folder.iterdir():
        inner = [f"{path.name}/{one.name}" for one in path.iterdir()] if path.name == "logs" else []
        for name in inner or [path.name]:
            name = re.sub(r"^(events-)?worker-\d+", r"\1worker-K", name)
            found.add(re.sub(r"(?<=[-/])(?:ps|worker|chief)-\d+", "JOB-K", name))
    return found


def own_arrays(example: str) -> dict[str, list[str]]:
    """The arrays of an example's own network, as the text describes them: name -> dimensions."""
    found, current = {}, ""
    for name, array, shape in tables("Arrays")[1]:
        current = name or current  # an empty cell continues the row above
        if current == example:
            lists = [each.split(", ") for each in re.findall(r"\[([^\[\]]*)\]", shape)]
            found |= dict(zip(re.findall(r"`(\w+)`", array), lists, strict=True))
    assert found
    return found


def assert_names_arrays(example: str, finished) -> None:
    with np.load(finished.results / "parameters.npz") as file:
        assert {name: file[name].ndim for name in file.files} == {
            name: len(shape) for name, shape in own_arrays(example).items()
        }
        assert file.files == list(own_arrays(example))
        assert {file[name].dtype for name in file.files} == {np.dtype("float32")}


def variables(finished) -> set[str]:
    """The variables in the newest checkpoint, as the text writes them."""
    found = checkpoints.values(checkpoints.newest(str(finished.results / "checkpoints")))
    found = {re.sub(r"\w+_(weights|biases)_\d+", "NAME", name) for name in found}
    return {re.sub(r"trial_\d+/\w+", "trial_T/NAME", name) for name in found}


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
    rounds = run("Synchronous-SGD", "--workers", 1, "--steps", 20, "--model", "linear")
    found = files(hogwild.results) | files(rounds.results) | files(alone)
    private = set() if network.can_be_private() else {"network.jsonl"}
    assert found | {"network.jsonl"} == names(tables("")[0]) - OF_ONE_EXAMPLE
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
        scalars, _ = shown(where / "worker-0")
        assert set(scalars) == names(tables("TensorBoard")[0])
        scalars, _ = shown(where / "test")
        assert set(scalars) == {"test_accuracy", "test_loss"}
    assert keys(rounds.results / "updates.jsonl") == names(tables("`updates.jsonl`")[0])
    tasks = {key for f in (hogwild, rounds) for task in f.summary["tasks"] for key in task}
    assert tasks == names(tables("`summary.json`")[1])
    part = json.loads((alone / "task-worker-0.json").read_text())
    assert set(part) == names(tables("`task-JOB-K.json`")[0])

    # The arrays: names in order, and the number of dimensions that the text gives.
    rows, _ = tables("Arrays")
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
    rebuilt.assert_the_same(rounds)


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
    assert_names_arrays("Actor-Learner", learner)
    assert files(search.results) & OF_ONE_EXAMPLE == {"trials.jsonl", "members.npz"}
    trials = results.Tail(search.results / "trials.jsonl").read()
    assert {key for trial in trials for key in trial} == names(tables("`trials.jsonl`")[0])
    with np.load(search.results / "members.npz") as file:
        assert all(re.fullmatch(r"trial_\d+/\w+", name) for name in file.files)
    usual, others = map(names, tables("`checkpoints`"))
    assert variables(learner) < usual and variables(search) == others


def assert_the_cost_of_a_client(finished) -> None:
    """`test_in_graph.py` calls this for one of its runs."""
    assert files(finished.results) & OF_ONE_EXAMPLE == {"client.json"}
    found = json.loads((finished.results / "client.json").read_text())
    assert set(found) == names(tables("`client.json`")[0])


def assert_clocks_and_transfers(finished) -> None:
    """`test_model_parallelism.py` calls this for one of its runs."""
    assert files(finished.results) & OF_ONE_EXAMPLE == {"clocks.jsonl", "transfers.json"}
    steps = results.Tail(finished.results / "clocks.jsonl").read()
    transfers = json.loads((finished.results / "transfers.json").read_text())
    lines = [part for step in steps for part in step]
    for name, found in (("clocks.jsonl", lines), ("transfers.json", transfers)):
        (rows,) = tables(f"`{name}`")
        entries = [int(number) for row in rows for number in row[0].split(", ")]
        assert entries == list(range(1, len(found[0]) + 1))
        assert all(len(each) == len(entries) for each in found)
    assert len(steps) == finished.summary["global_step"]
    assert_names_arrays("Model-Parallelism, `--split layers`", finished)


FLAGS = argparse.Namespace(data="digits", seed=0, hidden=7, workers=2, width=0.25)
SIZES = {"features": 64, "hidden": 7, "classes": 10}


@pytest.fixture
def created(monkeypatch):
    """`created("Your-Own", "network", make)`: the names and shapes of the variables in the list
    that `make` creates with a module of an example."""

    def _created(example, name, make) -> dict[str, list[int]]:
        monkeypatch.syspath_prepend(ROOT / example)  # it may import others in its folder
        spec = importlib.util.spec_from_file_location(
            f"{example}-{name}", ROOT / example / f"{name}.py"
        )
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        with tf.Graph().as_default():
            return {param.op.name: param.shape.as_list() for param in make(module)}

    return _created


@pytest.mark.parametrize(
    ("described", "script", "make"),
    [
        ("Your-Own", "network", lambda module: module.create(FLAGS, 64, 10)),
        ("Actor-Learner", "shared",
         lambda module: module.network("policy", 2, FLAGS) + module.network("baseline", 1, FLAGS)),
        ("Model-Parallelism, `--split layers`", "network",
         lambda module: [param for i in range(4) for param in module.create(FLAGS, i)]),
        ("CIFAR-10, `cnn`", "cnn", lambda module: module.create(FLAGS, 10)[0]),
    ],
)  # fmt: skip
def test_the_arrays_of_a_network_of_its_own(created, described, script, make):
    expected = {name: [SIZES.get(size) or int(size) for size in shape]
                for name, shape in own_arrays(described).items()}  # fmt: skip
    found = created(described.partition(",")[0], script, make)
    assert list(found.items()) == list(expected.items())


def test_the_arrays_of_a_network_split_by_units(created):
    def make(module):
        return [param for k in (0, 1) for param in module.create_units(FLAGS, k)]

    expected = []
    for k, units in enumerate((3, 4)):  # of 7
        sizes = SIZES | {"units": units}
        for name, shape in own_arrays("Model-Parallelism, `--split units`").items():
            if k == 0 or name.endswith("_K"):
                expected.append((name.replace("_K", f"_{k}"), [sizes[size] for size in shape]))
    assert list(created("Model-Parallelism", "network", make).items()) == expected


def test_the_arrays_of_xception(created):
    found = created("CIFAR-10", "xception", lambda module: module.create(FLAGS, 10)[0])
    (row,) = [row for row in tables("Arrays")[1] if row[0] == "CIFAR-10, `xception`"]
    assert list(found) == [f"parameter_{i}" for i in range(len(found))]
    assert row[1] == f"`parameter_0` to `parameter_{len(found) - 1}`"
    shapes = list(found.values())
    while len(shapes) > 2:
        height, width, inputs, outputs = shapes.pop(0)
        if outputs == 1:  # the first array of a separable convolution
            assert (height, width) == (3, 3)
            _, _, again, outputs = one = shapes.pop(0)
            assert one == [1, 1, inputs, outputs] and again == inputs
        assert shapes[:2] == [[outputs], [outputs]]  # gamma and beta
        del shapes[:2]
    assert shapes == [[outputs, 10], [10]]
