"""One-Network-per-Device: every trial once, whatever dies; each network as if trained alone; the
best network and the ensemble, recomputed in NumPy."""

import argparse
import collections
import importlib
import json
import os
import re
import signal
import sys

import numpy as np
import pytest
from conftest import ROOT, Finished, eventually, processes, reach, task_pid
from gradients import digits, softmax_gradient
from machine import seconds

from common.datasets import npz
from common.launch import screen
from common.launch.folder import Folder
from common.record import closing, results
from common.told.about import About
from common.training.events import Events

FOLDER = "One-Network-per-Device"
X, LABELS = digits()
HELD_OUT = np.arange(len(LABELS)) % 5 == 0
TEST = digits("test")
RUNS = pytest.mark.slow("more runs")


def trials_of(where) -> list[dict]:
    return results.Tail(where / "trials.jsonl").read()


def members_of(where) -> list[list[np.ndarray]]:
    """The parameters of every network, float64."""
    with np.load(where / "members.npz") as file:
        found = collections.defaultdict(list)
        for name in file.files:
            found[int(name.split("/")[0].removeprefix("trial_"))].append(np.float64(file[name]))
    return [found[t] for t in range(len(found))]


def probabilities(params, x) -> np.ndarray:
    """The network in NumPy: layers with ReLU between them, then the softmax."""
    for weights, biases in zip(params[:-2:2], params[1:-2:2]):
        x = np.maximum(x @ weights + biases, 0)
    scores = x @ params[-2] + params[-1]
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True)


def accuracy(p, labels) -> float:
    return np.mean(p.argmax(axis=1) == labels)


def loss(p, labels) -> float:
    return -np.log(p[np.arange(len(labels)), labels]).mean()


def finished_once(where, count: int) -> dict[int, int]:
    """Trial -> worker, from the workers' lines; each trial was delivered once."""
    said = []
    for k in (0, 1):
        log = (where / "logs" / f"worker-{k}.log").read_text()
        found = re.findall(r"^> trial (\d+): .* worker \d$", log, re.M)
        said += [(int(trial), k) for trial in found]
    assert sorted(trial for trial, _ in said) == list(range(count))
    return dict(said)


def assert_the_results_hold(finished: Finished) -> None:
    """Checks trials.jsonl, summary.json and parameters.npz against members.npz in NumPy."""
    rows, members, summary = (
        trials_of(finished.results),
        members_of(finished.results),
        finished.summary,
    )
    answers = [probabilities(params, TEST[0]) for params in members]
    for row, params, p in zip(rows, members, answers, strict=True):
        held_out = probabilities(params, X[HELD_OUT])
        assert row["validation_accuracy"] == pytest.approx(accuracy(held_out, LABELS[HELD_OUT]))
        assert row["validation_loss"] == pytest.approx(loss(held_out, LABELS[HELD_OUT]), rel=1e-4)
        assert row["test_accuracy"] == pytest.approx(accuracy(p, TEST[1]))
        assert row["test_loss"] == pytest.approx(loss(p, TEST[1]), rel=1e-4)
    best = min(rows, key=lambda row: (-row["validation_accuracy"], row["validation_loss"]))
    assert summary["best_trial"] == best["trial"]
    assert summary["test_accuracy"] == best["test_accuracy"]
    assert summary["test_loss"] == best["test_loss"]
    for kept, member in zip(finished.parameters, members[best["trial"]], strict=True):
        np.testing.assert_array_equal(kept, member)
    assert summary["ensemble_accuracy"] == pytest.approx(accuracy(np.mean(answers, 0), TEST[1]))
    assert summary["ensemble_loss"] == pytest.approx(loss(np.mean(answers, 0), TEST[1]), rel=1e-4)
    mean = np.mean([row["test_accuracy"] for row in rows])
    assert summary["members_mean_accuracy"] == pytest.approx(mean)


def test_each_network_is_gradient_descent_with_its_rate(run):
    """As if trained alone in NumPy; no update is repeated or missing."""
    rates, steps = [0.05, 0.1, 0.3, 0.5, 0.9], 40
    finished = run(FOLDER, "--model", "linear", "--batch_size", 0, "--steps", steps,
                   "--rates", ",".join(map(str, rates)))  # fmt: skip
    rows, summary = trials_of(finished.results), finished.summary
    assert [row["learning_rate"] for row in rows] == rates
    assert summary["global_step"] == steps * len(rates)
    x, labels = X[~HELD_OUT], LABELS[~HELD_OUT]
    for rate, (weights, biases) in zip(rates, members_of(finished.results), strict=True):
        w, b = np.zeros((64, 10)), np.zeros(10)
        for _ in range(steps):
            gw, gb = softmax_gradient(w, b, x, labels)
            w, b = w - rate * gw, b - rate * gb
        assert np.abs(w).max() > 0.05
        np.testing.assert_allclose(weights, w, atol=1e-6)
        np.testing.assert_allclose(biases, b, atol=1e-6)
    assert_the_results_hold(finished)

    events = [event | {"worker": k} for k in (0, 1) for event in finished.events(k)]
    events.sort(key=lambda event: event["global_step"])
    assert [event["global_step"] for event in events] == list(range(1, steps * len(rates) + 1))
    for event in events:
        assert event["trial"] == (event["global_step"] - 1) // steps
        assert event["worker"] == rows[event["trial"]]["worker"]
        assert event["pull"] == event["push"] == event["staleness"] == 0
    assert summary["examples"] == steps * len(rates) * len(labels)
    assert finished_once(finished.results, len(rates)) == {r["trial"]: r["worker"] for r in rows}
    for row in rows:
        assert f"trial {row['trial']}: rate {row['learning_rate']:g}" in finished.output
    assert not list(finished.results.rglob(".*"))


@pytest.mark.slow("waits until killed tasks are back")
def test_no_trial_is_lost_or_done_twice(start):
    """Each kind of task is killed in the middle of a trial: a worker, the ps, the chief."""
    count, steps, delay = 24, 50, seconds(0.015)
    process, where = start(FOLDER, "--search", "random", "--trials", count, "--steps", steps,
                           "--model", "linear", "--delay", f"0:{delay},1:{delay}")  # fmt: skip
    tails = [results.Tail(where / f"events-worker-{k}.jsonl") for k in (0, 1)]
    latest = [{}, {}]  # event of each worker

    def both(condition) -> bool:
        for k, tail in enumerate(tails):
            latest[k] = [latest[k], *tail.read()][-1]
        assert process.poll() is None, process.stdout.read()
        return all(event and condition(k, event) for k, event in enumerate(latest))

    def kill(job, index) -> int:
        """Kills a task while both workers are mid-trial; returns the trial of worker `index`."""
        middle = range(10, 40)
        assert eventually(lambda: both(lambda k, e: e["local_step"] % steps in middle), 60)
        os.kill(task_pid(where, job, index), signal.SIGKILL)
        at = [event["trial"] for event in latest]
        # Then both reach a later trial, which they got from the ps.
        assert eventually(lambda: both(lambda k, e: e["trial"] > at[k]), 60), f"{job} {index}"
        return at[index]

    killed = [kill(*task) for task in (("worker", 1), ("ps", 0), ("worker", 0))]
    output, _ = process.communicate(timeout=seconds(120))
    assert process.returncode == 0, output
    summary = json.loads((where / "summary.json").read_text())
    assert [task["restarts"] for task in summary["tasks"]] == [1, 1, 1]
    for k in (0, 1):
        assert re.search(rf"^\[worker {k}\] lost the ps: continues with ", output, re.M)
    assert summary["global_step"] == count * steps
    rows = trials_of(where)
    assert finished_once(where, count) == {row["trial"]: row["worker"] for row in rows}
    events = [reach(where, 1, k) for k in (0, 1)]
    for k, mine in enumerate(events):
        made = collections.Counter(event["global_step"] for event in mine)
        again = {(number - 1) // steps for number, times in made.items() if times > 1}
        assert again == {killed[2 if k == 0 else 0]}  # its own trial, which it had begun
        assert all(rows[event["trial"]]["worker"] == k for event in mine)
    assert_the_results_hold(Finished(0, output, where))


@pytest.mark.slow("a run that is stopped, and one that continues")
def test_a_search_resumes_from_its_checkpoint(start, run, tmp_path):
    """It does not repeat finished trials, even with a different number of workers."""
    where = tmp_path / "a[1]"  # TensorFlow would read it as a pattern
    flags = ["--search", "random", "--trials", 8, "--steps", 30, "--model", "linear"]
    flags += ["--results", where]
    process, _ = start(FOLDER, *flags, "--delay", "0:0.02,1:0.02")
    saved = where / "checkpoints" / "checkpoint"
    assert eventually(lambda: saved.exists() and "ckpt-4" in saved.read_text(), 60)
    process.kill()
    process.communicate()
    assert eventually(lambda: not processes(), 5)
    before = len((where / "events-worker-0.jsonl").read_text().splitlines())
    finished = run(FOLDER, *flags, "--workers", 1)
    assert finished.summary["global_step"] == 8 * 30
    assert re.search(r"^\[worker 0\] continues: [4-8] of 8 trials are finished$",
                     finished.output, re.M)  # fmt: skip
    assert len({event["trial"] for event in finished.events(0)[before:]}) <= 4
    assert_the_results_hold(finished)

    other = run(FOLDER, *flags, "--seed", 1, "--workers", 1, ok=False)
    assert other.code == 2
    last = other.output.rstrip().splitlines()[-1]
    assert last.endswith("is from another search: use a different --checkpoint_dir")


@RUNS
def test_a_random_trial_is_as_if_trained_alone(run, trials, tmp_path):
    """With mini-batches, a network is the same as in one process on the same examples, with the
    trial's settings, which depend only on the flags."""
    two = run(FOLDER, "--search", "random", "--trials", 5, "--steps", 150)
    expected = trials.settings(argparse.Namespace(**two.summary["flags"]), 0)
    fixed = ("learning_rate", "hidden", "seed")
    rows = [[row[key] for key in fixed] for row in trials_of(two.results)]
    assert rows == [[getattr(own, key) for key in fixed] for own in expected] and len(rows) == 5
    assert_the_results_hold(two)

    x, labels = (part.astype(kind) for part, kind in zip((X, LABELS), ("float32", "int64")))
    names = ("x_train", "y_train", "x_test", "y_test")
    stored = np.empty(np.count_nonzero(~HELD_OUT), int)  # so that shuffling the file sorts it
    stored[np.random.default_rng(npz.SEED).permutation(len(stored))] = np.flatnonzero(~HELD_OUT)
    arrays = (x[stored], labels[stored], x[HELD_OUT], labels[HELD_OUT])
    np.savez(tmp_path / "own.npz", **dict(zip(names, arrays)))
    row = trials_of(two.results)[3]
    alone = run("Non-Distributed-Setup", "--data", tmp_path / "own.npz", "--steps", 150,
                "--learning_rate", row["learning_rate"], "--hidden", row["hidden"],
                "--seed", row["seed"])  # fmt: skip
    for a, b in zip(alone.parameters, members_of(two.results)[3], strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    assert alone.summary["test_accuracy"] == pytest.approx(row["validation_accuracy"])


@RUNS
def test_the_ensemble_is_better_than_its_members_on_average(default_run):
    finished = default_run(FOLDER)
    summary = finished.summary
    rows = trials_of(finished.results)
    pairs = [(row["learning_rate"], row["hidden"]) for row in rows]
    flags = summary["flags"]
    assert pairs == [(r, w) for r in flags["rates"] for w in flags["widths"]]
    assert summary["ensemble_accuracy"] > summary["members_mean_accuracy"] > 0.9
    assert_the_results_hold(finished)


@RUNS
def test_a_rate_that_diverges_is_a_result(run):
    flags = ["--widths", "16", "--steps", 200, "--workers", 1]
    finished = run(FOLDER, *flags, "--rates", "0.2,1e30")
    good, bad = trials_of(finished.results)
    assert "validation_accuracy" not in bad and bad["updates"] < 200 == good["updates"]
    assert "trial 1: rate 1e+30  width 16  diverged" in finished.output
    summary = finished.summary
    assert summary["best_trial"] == 0 and summary["global_step"] == 200 + bad["updates"]
    assert summary["ensemble_accuracy"] == summary["test_accuracy"] == good["test_accuracy"]
    finished = run(FOLDER, *flags, "--rates", "1e30", ok=False)
    assert finished.code == 2
    assert finished.output.rstrip().endswith("error: every network diverged: try smaller --rates")


def test_the_screen_shows_the_tasks_lines_and_the_progress_of_the_whole_run(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(closing.atexit, "register", lambda at_end: None)  # not in this process
    options = argparse.Namespace(workers=1, steps=10, batch_size=32, plain=True, data="digits")
    options.results, options.checkpoint_dir = str(tmp_path), str(tmp_path / "checkpoints")
    shown = screen.Screen(Folder(options, "One-Network-per-Device"), options, "1 worker", About())
    events = Events(options, 0)
    events.note(25, 0.5, 0.001, total=50)
    log = tmp_path / "logs" / "worker-0.log"
    log.write_bytes(b"not this\n> trial 2: good \xff\n> half a li")
    shown.update()
    (bar,) = shown._progress.tasks
    assert (bar.completed, bar.total) == (25, 50)
    with open(log, "ab") as file:
        file.write(b"ne\n")
    shown.update()
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:] == ["[worker 0] step 25  loss 0.5  staleness 0", "trial 2: good \ufffd",
                         "half a line"]  # fmt: skip


@pytest.fixture
def trials(monkeypatch):
    """The folder's module."""
    monkeypatch.syspath_prepend(ROOT / FOLDER)
    yield importlib.import_module("trials")
    sys.modules.pop("trials")


FLAGS = {
    "rates": [0.1, 1.0], "widths": [8, 64, 512], "search": "grid", "trials": 0, "model": "mlp",
    "target_accuracy": None, "steps_per_execution": 1,
    "ps": 1, "seed": 3, "delay": {1: 0.5}, "steps": 10,
}  # fmt: skip


def settings(module, worker: int = 0, **changes) -> list:
    return module.settings(argparse.Namespace(**FLAGS | changes), worker)


def test_a_grid_has_every_pair_once_with_its_own_seed(trials):
    found = settings(trials)
    assert [(own.learning_rate, own.hidden) for own in found] == [
        (0.1, 8), (0.1, 64), (0.1, 512), (1.0, 8), (1.0, 64), (1.0, 512)]  # fmt: skip
    assert len({own.seed for own in found}) == 6
    assert {own.steps for own in found} == {10}
    assert not any(own.delay for own in found)
    assert all(own.delay == {0: 0.5} for own in settings(trials, worker=1))
    assert [own.hidden for own in settings(trials, model="cnn")] == [None, None]


def test_random_trials_lie_within_the_range_and_begin_alike(trials):
    many = settings(trials, search="random", trials=300)
    rates, widths = ([getattr(own, key) for own in many] for key in ("learning_rate", "hidden"))
    assert len(many) == 300 and len(set(rates)) > 200
    assert min(rates) >= 0.1 and max(rates) <= 1 and min(widths) >= 8 and max(widths) <= 512
    assert np.mean(np.array(rates) < np.sqrt(0.1)) == pytest.approx(0.5, abs=0.1)  # log-uniform

    def drawn(**changes) -> list:
        found = settings(trials, search="random", **changes)
        return [(own.learning_rate, own.hidden, own.seed) for own in found]

    many = drawn(trials=300)
    assert drawn(trials=5) == many[:5]
    assert drawn() == many[:6]  # as many as the grid
    assert not set(drawn(trials=5, seed=4)) & set(many)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rates": [0.1, 0.0]}, "--rates: each must be above 0, not 0"),
        ({"widths": [-3]}, "--widths: each must be above 0, not -3"),
        ({"trials": 4}, "--trials 4: a grid has a trial for each pair"),
        ({"trials": -1, "search": "random"}, "--trials -1: must be at least 1"),
        (
            {"target_accuracy": 0.9},
            "--target_accuracy: leave it out, since the test set is used only once",
        ),
        ({"steps_per_execution": 5}, "--steps_per_execution: leave it out"),
        ({"ps": 2}, "--ps 2: must be 1, since one ps keeps the whole search"),
    ],
)
def test_a_mistake_ends_with_a_one_line_error(trials, capsys, changes, words):
    with pytest.raises(SystemExit) as ended:
        settings(trials, **changes)
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {words}") and error.count("\n") == 1


@RUNS
def test_run_sh_shows_the_mistake(run):
    for flags, words in ((("--search", "luck"), "--search: must be one of grid, random"),
                         (("--rates", "fast"), "--rates: must be a number"),
                         (("--hidden", "64"), "--hidden: this example does not use it"),
                         (("--rates", "0"), "--rates: each must be above 0, not 0")):  # fmt: skip
        finished = run(FOLDER, *flags, "--workers", 1, ok=False)
        assert finished.code == 2
        assert words in finished.output.rstrip().splitlines()[-1]
        assert "Traceback" not in finished.output
