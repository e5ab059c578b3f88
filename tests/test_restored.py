"""What a run restores with other numbers of workers and ps, as docs/OPERATIONS.md says."""

import numpy as np
import pytest
from conftest import ROOT

from common.training import checkpoints

SLOTS = {"HogWild": (), "DOWNPOUR-Easy": ("Adagrad",), "DOWNPOUR": ("Adagrad",), "AEAMSGD": (),
         "Local-SGD": (), "DiLoCo": ("u",), "Async-DiLoCo": ("u", "B"),
         "Keras-Model": (), "Your-Own": ("Adam", "Adam_1")}  # fmt: skip
# The last one is Keras-Model's, and no step uses it.
OTHER = {"beta1_power", "beta2_power", "global_step", "released",
         "seed_generator/seed_generator_state"}  # fmt: skip


def saved(folder) -> dict[str, np.ndarray]:
    return checkpoints.values(checkpoints.newest(str(folder)))


@pytest.mark.parametrize(
    "example",
    [
        name
        if name in ("DOWNPOUR-Easy", "Your-Own")
        else pytest.param(name, marks=pytest.mark.slow("more"))
        for name in SLOTS
    ],
)
def test_what_is_on_the_ps_is_restored(run, tmp_path, example):
    """Parameters and slots, as they were: 3 workers and 2 ps find nothing left to do. Nothing of a
    worker is saved: no parameters of its own (AEAMSGD), no momentum, no accumulators (DOWNPOUR).
    Keras-Model's moving statistics are among its parameters."""
    folder = tmp_path / "saved"
    first = run(example, "--steps", 30, "--checkpoint_dir", folder)
    before = saved(folder)
    second = run(example, "--steps", 30, "--checkpoint_dir", folder, "--workers", 3, "--ps", 2)
    assert "all 30 updates are already done" in second.output
    after = saved(folder)
    assert before.keys() == after.keys()
    for name, value in before.items():
        np.testing.assert_array_equal(value, after[name], err_msg=name)
    for a, b in zip(first.parameters, second.parameters, strict=True):
        np.testing.assert_array_equal(a, b)
    with np.load(first.results / "parameters.npz") as file:
        names = set(file.files)
    slots = {f"{name}/{slot}" for name in names for slot in SLOTS[example]}
    assert names | slots <= before.keys() <= names | slots | OTHER
    on = run(example, "--steps", 45, "--checkpoint_dir", folder, "--workers", 1)
    assert "continues at update 30 of 45" in on.output
    assert [event["global_step"] for event in on.events()] == list(range(31, 46))


def test_a_worker_of_elastic_averaging_begins_at_the_global_parameters(run, tmp_path):
    """So its first exchange is 0: alpha (x - w~), with x = w~."""
    folder = tmp_path / "saved"
    first = run("AEASGD", "--steps", 20, "--checkpoint_dir", folder)
    second = run("AEASGD", "--steps", 21, "--checkpoint_dir", folder, "--workers", 1)
    assert second.summary["global_step"] == 21
    for a, b in zip(first.parameters, second.parameters, strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_data_begin_again(run, tmp_path):
    """With a rate that changes nothing, the losses after a restart are those of the start."""
    flags = ["--workers", 1, "--checkpoint_dir", tmp_path / "saved", "--learning_rate", 1e-30]
    first = run("HogWild", *flags, "--steps", 5)
    second = run("HogWild", *flags, "--steps", 10)
    losses = [[event["loss"] for event in each.events()] for each in (first, second)]
    assert losses[0] == losses[1] and len(set(losses[0])) == 5


@pytest.mark.slow("three runs")
def test_units_split_among_another_number_of_workers_are_another_model(run, tmp_path):
    flags = ["--split", "units", "--checkpoint_dir", tmp_path / "saved"]
    run("Model-Parallelism", *flags, "--steps", 5)
    refused = run("Model-Parallelism", *flags, "--steps", 9, "--workers", 4, ok=False)
    assert refused.code == 2 and "is from another model or optimizer" in refused.output
    layers = ["--checkpoint_dir", tmp_path / "layers"]
    run("Model-Parallelism", *layers, "--steps", 5)
    on = run("Model-Parallelism", *layers, "--steps", 9, "--workers", 4)
    assert on.summary["global_step"] == 9


def test_the_page_names_each_kind_of_state():
    page = (ROOT / "docs/OPERATIONS.md").read_text()
    table = page.partition("**What is restored.**")[2].partition("**What a kill costs.**")[0]
    for kind in ("Adagrad, Adam", "moving statistics", "blocks", "patience", "momentum", "tokens"):
        assert kind in table
