"""Your-Own: the folder's replacements work like the originals."""

import argparse
import importlib.util
import json
import subprocess

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from conftest import ROOT, Finished, environment, kill_and_see_it_back, seconds, wait_for_checkpoint
from sklearn.datasets import load_iris
from test_transfers import assert_one_transfer_each_way, probed

ROWS = np.loadtxt(ROOT / "Your-Own" / "tumours.csv", delimiter=",", skiprows=1)
IS_TEST = np.arange(len(ROWS)) % 5 == 0


def examples(is_wanted, rows=ROWS, is_test=IS_TEST):
    """The standardised features and labels of some lines."""
    train = rows[~is_test, :-1]
    x = (rows[is_wanted, :-1] - train.mean(axis=0)) / train.std(axis=0)
    return x, rows[is_wanted, -1].astype(int)


def predict(params, x):
    """The network in NumPy, without dropout."""
    for weights, biases in zip(params[0:4:2], params[1:4:2]):
        x = np.maximum(x @ weights + biases, 0)
    return x @ params[4] + params[5]


def loss(output, labels):
    output = output - output.max(axis=1, keepdims=True)
    logs = output - np.log(np.exp(output).sum(axis=1, keepdims=True))
    return -logs[np.arange(len(labels)), labels].mean()


def checkpoint(folder):
    return tf.train.load_checkpoint(str(folder / "checkpoints"))


@pytest.mark.slow("waits until a killed ps is back")
def test_killed_ps_comes_back_with_the_slots(start):
    """A lost ps is restored from the checkpoint, Adam's powers included. A call makes several
    steps. Dropout is on in training and off in evaluation."""
    flags = ["--dropout", 0.5, "--steps_per_execution", 5, "--delay", "0:0.01,1:0.01"]
    process, where = start("Your-Own", "--steps", 2000, *flags)
    wait_for_checkpoint(where, 100)
    killed = kill_and_see_it_back(where, "ps", 0)
    output, _ = process.communicate(timeout=seconds(120))
    assert process.returncode == 0, output
    finished = Finished(process.returncode, output, where)
    summary = finished.summary
    assert summary["flags"]["dropout"] == 0.5
    assert summary["global_step"] == 2000
    assert [task["restarts"] for task in summary["tasks"]] == [1, 0, 0]
    assert summary["test_accuracy"] >= 0.94
    events = sorted((e for k in (0, 1) for e in finished.events(k)), key=lambda e: e["time"])
    first = min(e["global_step"] for e in events if e["time"] > killed + 1)
    assert first > 100  # it continued from the checkpoint
    assert_adam_is_on_the_ps(finished)
    assert_dropout_is_off_in_evaluation(finished)


def assert_dropout_is_off_in_evaluation(finished) -> None:
    """The evaluation matches the full network in NumPy; the training loss does not."""
    summary = finished.summary
    x, labels = examples(IS_TEST)
    output = predict(finished.parameters, x)
    found = output.argmax(axis=1)
    assert summary["test_accuracy"] == pytest.approx(np.mean(found == labels))
    assert summary["test_missed"] == pytest.approx(np.mean((labels == 1) & (found != 1)))
    assert summary["test_loss"] == pytest.approx(loss(output, labels), rel=1e-4)

    x, labels = examples(~IS_TEST)
    last = [event["loss"] for k in (0, 1) for event in finished.events(k)[-150:]]
    assert np.mean(last) > 1.2 * loss(predict(finished.parameters, x), labels)

    lines = (finished.results / "evaluations.jsonl").read_text().splitlines()
    assert all("test_missed" in json.loads(line) for line in lines)


def assert_adam_is_on_the_ps(finished) -> None:
    """Checks that each parameter has its slots in the checkpoint, and that every update counted."""
    saved = checkpoint(finished.results)
    names = [f"{kind}_{i}" for i in range(3) for kind in ("weights", "biases")]
    for name, param in zip(names, finished.parameters, strict=True):
        np.testing.assert_array_equal(saved.get_tensor(name), param)
        for slot in ("Adam", "Adam_1"):
            assert saved.get_tensor(f"{name}/{slot}").shape == param.shape
            assert saved.get_tensor(f"{name}/{slot}").any()
    # One power per update; two simultaneous updates may count as one.
    updates = np.log(saved.get_tensor("beta2_power")) / np.log(0.999)
    steps = finished.summary["global_step"]
    assert 0.9 * steps < updates <= steps + 2


def test_adam_lives_on_the_ps_and_its_rate_decays(default_run):
    finished = default_run("Your-Own")
    assert finished.summary["test_accuracy"] >= 0.94
    assert_adam_is_on_the_ps(finished)
    rates = []
    for path in finished.results.glob("*/events*"):
        for event in tf.train.summary_iterator(str(path)):
            for value in event.summary.value:
                if value.tag == "schedule/learning_rate":
                    rates.append((event.step, value.simple_value))
    assert len(rates) >= 2
    for step, rate in rates:
        number = 1000 * np.log10(0.01 / rate)
        assert 0 <= number < 1000 and abs(number - step) < 20
    log = (finished.results / "logs" / "worker-0.log").read_text()
    assert "[worker 0] learning rate 0.0" in log


def test_a_copy_reads_another_table(run, tmp_path):
    """A reader's project: this folder, common/, and a CSV file with more classes. The parameters
    are on two ps, and a step makes one transfer to each and one back."""
    iris = load_iris()
    rows = np.column_stack([iris.data, iris.target])[np.random.default_rng(0).permutation(150)]
    table = tmp_path / "iris.csv"
    np.savetxt(table, rows, "%g", ",", header="a,b,c,d,class", comments="")
    project = tmp_path / "my project"
    project.mkdir()
    probed("Your-Own", project)
    finished = run("Your-Own", "--data", "iris.csv", "--steps", 400, "--ps", 2, root=project)
    assert_one_transfer_each_way(finished, 2)
    assert_adam_is_on_the_ps(finished)
    assert finished.summary["flags"]["data"] == str(table)
    assert [p.shape for p in finished.parameters[:2]] == [(4, 32), (32,)]
    assert finished.parameters[-1].shape == (3,)
    is_test = np.arange(150) % 5 == 0
    x, labels = examples(is_test, rows, is_test)
    found = predict(finished.parameters, x).argmax(axis=1)
    assert finished.summary["test_accuracy"] == pytest.approx(np.mean(found == labels))
    assert finished.summary["test_accuracy"] >= 0.85


def test_help_shows_the_folders_own_defaults():
    done = subprocess.run(
        ["bash", ROOT / "Your-Own" / "run.sh", "--help"],
        capture_output=True, text=True, env=environment(COLUMNS="200"),
    )  # fmt: skip
    assert done.returncode == 0
    for flag, default in (("dropout", "0.2"), ("model", "dropout_net"), ("hidden", "32")):
        (line,) = [line for line in done.stdout.splitlines() if f"--{flag} " in line]
        assert f"(default: {default})" in line
    assert "(default: tumours.csv)" in " ".join(done.stdout.split())


READ = pytest.mark.slow("the worker finds it, not the launcher: TensorFlow is imported first")


@pytest.mark.parametrize(
    ("flag", "value", "words"),
    [
        ("--dropout", "1", "--dropout 1: must be at least 0 and below 1"),
        pytest.param("--data", "words.csv", "could not convert string 'x'", marks=READ),
    ],
)
def test_a_mistake_ends_with_a_one_line_error(run, tmp_path, flag, value, words):
    """Those that the launcher finds are in bad_input.py."""
    (tmp_path / "words.csv").write_text("a,class\n" + "1,0\n" * 9 + "x,1\n")
    finished = run("Your-Own", flag, value, "--workers", 1, ok=False)
    assert finished.code == 2
    last = finished.output.rstrip().splitlines()[-1]
    assert last.startswith("error: ") and words in last
    assert "Traceback" not in finished.output
    assert not finished.results.exists()


@pytest.mark.parametrize(
    ("label", "batch_size", "words"),
    [
        ("0.5", 32, "the last column must hold classes"),
        ("0", 0, "--batch_size 0: this example draws batches"),
    ],
)
def test_a_table_that_does_not_fit(capsys, tmp_path, label, batch_size, words):
    """A worker reads it like this, and ends with a one-line error."""
    spec = importlib.util.spec_from_file_location("table", ROOT / "Your-Own" / "table.py")
    table = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(table)
    path = tmp_path / "table.csv"
    path.write_text("a,class\n" + "1,0\n" * 9 + f"1,{label}\n")
    flags = argparse.Namespace(data=str(path), batch_size=batch_size)
    with pytest.raises(SystemExit) as ended:
        table.sizes(flags.data)
        table.batches(flags, worker=0, workers=2)
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and words in error and error.count("\n") == 1
