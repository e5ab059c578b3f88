"""MNIST-1D: what the package generates, once per machine."""

import os
import random
import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT, environment
from machine import seconds
from mnist1d.data import get_dataset_args, make_dataset

from common import datasets
from common.datasets import mnist1d
from common.flags import parser


@pytest.fixture
def few(monkeypatch, tmp_path):
    """30 examples for training and 20 for the test; `few` is where their file will be."""
    monkeypatch.setattr(mnist1d, "TRAIN", 30)
    monkeypatch.setattr(mnist1d, "TEST", 20)
    monkeypatch.setenv("DATA_DIR", str(tmp_path))
    return tmp_path / "mnist1d"


def both() -> list[np.ndarray]:
    return [array for part in ("train", "test") for array in mnist1d.load(None, part)]


def test_it_is_what_the_package_generates_with_its_own_settings(few):
    args = get_dataset_args()
    args.num_samples, args.train_split = 50, 0.6
    made = make_dataset(args)
    x_train, y_train, x_test, y_test = both()
    assert (x_train.shape, x_test.shape) == ((30, 1, 40), (20, 1, 40))
    assert x_train.dtype == x_test.dtype == np.float32
    np.testing.assert_allclose(x_train[:, 0], made["x"], rtol=1e-6)
    np.testing.assert_allclose(x_test[:, 0], made["x_test"], rtol=1e-6)
    np.testing.assert_array_equal(y_train, made["y"])
    np.testing.assert_array_equal(y_test, made["y_test"])


def test_it_is_generated_once_and_again_if_its_file_is_damaged(few):
    first = both()
    (path,) = few.iterdir()  # no other file is left over
    was = path.stat()
    for again in (both(), both()):
        assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert path.stat().st_mtime_ns == was.st_mtime_ns
    path.write_bytes(path.read_bytes()[:-200])
    assert all(np.array_equal(a, b) for a, b in zip(first, both(), strict=True))
    assert [each.stat().st_size for each in few.iterdir()] == [was.st_size]


def test_random_numbers_of_the_process_stay_as_they_were(few):
    random.seed(3), np.random.seed(3)
    wanted = random.random(), np.random.random()
    random.seed(3), np.random.seed(3)
    both()
    assert (random.random(), np.random.random()) == wanted


def test_a_place_that_cannot_be_written_gives_one_sentence(few, capsys):
    few.parent.joinpath("mnist1d").write_text("in the way")
    with pytest.raises(SystemExit) as ended:
        both()
    error = capsys.readouterr().err
    assert ended.value.code == 2 and error.count("\n") == 1
    assert error.startswith("error: ") and str(few) in error


def test_its_description_and_its_size():
    example, classes, size = datasets.describe(parser({}).parse_args(["--data", "mnist1d"]))
    x, labels = mnist1d.load(None, "train")
    assert (x.shape, labels.max() + 1) == ((size, *example), classes)
    test, labels = mnist1d.load(None, "test")
    assert len(test) == len(labels) == 10_000
    counts = np.bincount(labels)
    assert len(counts) == 10 and counts.min() > 900


def test_processes_that_start_together_generate_it_once(tmp_path):
    script = "from common.datasets import mnist1d; print(mnist1d.load(None, 'test')[0].sum())"
    env = environment(DATA_DIR=str(tmp_path), PYTHONPATH=str(ROOT))
    command = [sys.executable, "-c", script]
    several = [subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE)
               for _ in range(3)]  # fmt: skip
    said = {process.communicate(timeout=seconds(120))[0] for process in several}
    assert len(said) == 1 and os.listdir(tmp_path) == ["mnist1d"]
    assert len(os.listdir(tmp_path / "mnist1d")) == 1


@pytest.mark.slow("three trainings")
def test_it_tells_networks_apart(run):
    """As its authors say: a linear model is poor, a convolution best."""
    reached = {}
    for model in ("linear", "mlp", "cnn"):
        flags = ["--data", "mnist1d", "--model", model, "--learning_rate", 0.1, "--steps", 6000]
        reached[model] = run("Non-Distributed-Setup", *flags).summary["test_accuracy"]
    assert 0.28 < reached["linear"] < 0.36
    assert 0.5 < reached["mlp"] < 0.75
    assert reached["cnn"] > 0.93
