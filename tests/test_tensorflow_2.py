"""TensorFlow-2: its four strategies against NumPy and the sibling examples; killed tasks."""

import itertools
import json
import os
import re
import shutil
import signal

import numpy as np
import pytest
from conftest import kill_and_see_it_back, reach, task_pid
from formulas import HogWild, SynchronousSGD
from machine import seconds
from test_replay import EXACT, distance, flat, replayed

HERE = "TensorFlow-2"
SYNCHRONOUS = ("multi_worker_mirrored", "mirrored", "central_storage")
FULL = ("--model", "linear", "--batch_size", 0, "--learning_rate", 0.3)
STEPS = 40


def after_rounds(finished, steps: int = STEPS) -> np.ndarray:
    """The parameters after `steps` updates by all workers, from the formula."""
    scheme, w = SynchronousSGD(finished.summary["flags"], np.zeros(650)), np.zeros(650)
    for _ in range(steps):
        w = scheme.round(w)
    return w


def assert_once_each(finished, steps: int) -> None:
    """Checks a synchronous run: each worker contributed once to each update."""
    for k in range(finished.summary["workers"]):
        assert [event["global_step"] for event in finished.events(k)] == list(range(1, steps + 1))
    assert finished.summary["global_step"] == steps
    assert finished.summary["staleness"]["max"] == 0


def test_one_worker_of_parameter_server_is_gradient_descent(run):
    finished = run(HERE, *FULL, "--workers", 1, "--steps", STEPS)
    scheme = HogWild(finished.summary["flags"], 0)
    assert distance(flat(finished), replayed(finished, scheme)) < EXACT
    jobs = [(task["job"], task["exit_code"]) for task in finished.summary["tasks"]]
    assert jobs == [("ps", 0), ("worker", 0), ("chief", 0)]
    assert finished.summary["staleness"]["max"] == 0


@pytest.mark.slow("a separate run")
def test_parameter_server_is_hogwild(run):
    """Each number appears once, and the staleness explains the result, but not to the last digit: a
    push may happen during another worker's pull."""
    finished = run(HERE, *FULL, "--workers", 3, "--steps", 60)
    scheme = HogWild(finished.summary["flags"], 0)
    measured, explained = flat(finished), replayed(finished, scheme)
    events = [(e["global_step"], k) for k in range(3) for e in finished.events(k)]
    fresh = np.zeros(650)  # as if no update were stale
    for _, k in sorted(events):
        fresh = scheme.update(fresh, scheme.push(k, fresh), 0, fresh)
    assert finished.summary["staleness"]["max"] > 0
    assert min(len(finished.events(k)) for k in range(3)) > 0
    assert distance(measured, explained) < min(0.01, distance(measured, fresh))


def test_a_synchronous_strategy_matches_the_formula(run):
    """The next test and the replay of Synchronous-SGD show the same for the others."""
    finished = run(HERE, *FULL, "--strategy", "mirrored", "--workers", 3, "--steps", STEPS)
    assert distance(flat(finished), after_rounds(finished)) < EXACT
    assert_once_each(finished, STEPS)
    assert [task["job"] for task in finished.summary["tasks"]] == ["worker"] * 3


@pytest.mark.slow("four runs")
def test_synchronous_strategies_are_synchronous_sgd(run):
    """With the same mini-batches from the same seed, even if a call makes several steps and the
    last call fewer."""
    flags = ("--workers", 2, "--learning_rate", 0.3, "--steps", STEPS, "--steps_per_execution", 15)
    expected = flat(run("Synchronous-SGD", *flags))
    for strategy in SYNCHRONOUS:
        finished = run(HERE, "--strategy", strategy, *flags)
        assert distance(flat(finished), expected) < 1e-4
        assert_once_each(finished, STEPS)


@pytest.mark.slow("two runs")
def test_a_checkpoint_works_with_every_strategy(run, tmp_path):
    """Training continues from it to exactly --steps. TensorFlow would read the folder's name as a
    pattern."""
    folder = ["--checkpoint_dir", tmp_path / "a[1]"]
    first = run(HERE, *folder, "--steps", 100)
    second = run(HERE, "--strategy", "central_storage", *folder, "--steps", 130)
    assert [event["global_step"] for event in second.events(1)] == list(range(101, 131))
    assert second.summary["global_step"] == 130
    assert first.summary["global_step"] == 100
    made = sorted(event["global_step"] for k in (0, 1) for event in first.events(k))
    assert made == list(range(1, 101))


@pytest.mark.slow("two runs")
@pytest.mark.parametrize("strategy", ["parameter_server", "multi_worker_mirrored"])
def test_target_accuracy(run, strategy):
    """All workers stop long before --steps; synchronous ones stop after the same update."""
    finished = run(HERE, "--strategy", strategy, "--steps", 100_000, "--target_accuracy", 0.9)
    assert finished.summary["test_accuracy"] >= 0.85
    assert finished.summary["global_step"] < 50_000
    if strategy != "parameter_server":
        assert_once_each(finished, finished.summary["global_step"])


@pytest.mark.slow("a separate run")
def test_a_delayed_worker_gets_fewer_steps(run):
    finished = run(HERE, "--steps", 300, "--delay", f"1:{seconds(0.05)}")
    assert 0 < len(finished.events(1)) < len(finished.events(0)) / 2


@pytest.mark.slow("a separate run")
def test_nan_gives_a_one_line_error(run):
    finished = run(HERE, "--learning_rate", 1e30, ok=False)
    assert finished.code == 2
    last = finished.output.rstrip().splitlines()[-1]
    assert "is NaN or infinite: try a smaller --learning_rate than 1e+30" in last
    assert not (finished.results / "summary.json").exists()


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--strategy", "horovod"), "--strategy: "),
        (("--strategy", "mirrored", "--ps", 1), "--ps: this example runs in one process"),
        (("--strategy", "multi_worker_mirrored", "--ps", 1),
         "--ps: this example has no parameter server"),
        (("--window", 5), "unknown argument --window"),
        (("--ps", 0), "--ps 0: this example needs a parameter server"),
    ],
)  # fmt: skip
def test_mistakes_give_a_one_line_error(run, flags, sentence):
    finished = run(HERE, *flags, ok=False)
    assert finished.code == 2
    (line,) = finished.output.strip().splitlines()
    assert line.startswith(f"error: {sentence}")


@pytest.mark.slow("two runs")
def test_a_checkpoint_of_an_example_with_sessions(run, default_run, tmp_path):
    folder = tmp_path / "checkpoints"
    shutil.copytree(default_run("Non-Distributed-Setup").results / "checkpoints", folder)
    finished = run(HERE, "--strategy", "mirrored", "--checkpoint_dir", folder, ok=False)
    assert finished.code == 2
    last = finished.output.rstrip().splitlines()[-1]
    assert re.match(r"error: the checkpoint .* is from another model, .*: use a different "
                    r"--checkpoint_dir$", last)  # fmt: skip


def end_of(process, where) -> dict:
    output, _ = process.communicate(timeout=seconds(120))
    assert process.returncode == 0, output
    return json.loads((where / "summary.json").read_text()) | {"output": output}


@pytest.mark.slow("waits until killed tasks are back")
def test_parameter_server_survives_the_loss_of_each_task(start):
    """A worker, the ps and the chief are killed in turn. Only the ps's death undoes steps: those
    of at most 2 s."""
    delay = seconds(0.01)
    flags = ["--steps", 1200, "--delay", f"0:{delay},1:{delay}"]
    process, where = start(HERE, *flags)
    reach(where, 200)
    for job, index in (("worker", 1), ("ps", 0), ("chief", 0)):
        kill_and_see_it_back(where, job, index)
    summary = end_of(process, where)
    assert 1200 <= summary["global_step"] <= 1210  # a step in flight may repeat
    assert summary["test_accuracy"] > 0.95
    assert {task["job"]: task["restarts"] for task in summary["tasks"]} == {
        "ps": 1, "worker": 1, "chief": 1}  # fmt: skip
    assert min(event["global_step"] for event in reach(where, 1)[-500:]) > 200


@pytest.mark.slow("waits until killed tasks are back")
@pytest.mark.parametrize("index", [0, 1])
def test_multi_worker_mirrored_starts_again_when_a_worker_is_lost(start, index):
    """The others notice, start again too, and all go on from the newest checkpoint."""
    process, where = start(HERE, "--strategy", "multi_worker_mirrored", "--steps", 1000,
                           "--delay", f"0:{seconds(0.005)}")  # fmt: skip
    reach(where, 400)
    kill_and_see_it_back(where, "worker", index)
    summary = end_of(process, where)
    assert summary["global_step"] == 1000
    assert [task["restarts"] for task in summary["tasks"]] == [index == 0, index == 1]
    log = (where / "logs" / f"worker-{1 - index}.log").read_text()
    assert "lost another task" in log and "is starting again from the newest checkpoint" in log
    again = [event["global_step"] for event in reach(where, 1000)]
    (back,) = [b for a, b in itertools.pairwise(again) if b <= a]  # they went back once, not to 0
    assert back > 1


@pytest.mark.slow("waits until killed tasks are back")
@pytest.mark.parametrize("strategy", ["multi_worker_mirrored", "parameter_server"])
def test_without_restarts_it_ends_with_a_one_line_error(start, strategy):
    process, where = start(HERE, "--strategy", strategy, "--steps", 10**8, "--max_restarts", 0)
    reach(where, 100)
    os.kill(task_pid(where, "worker", 1), signal.SIGKILL)
    output, _ = process.communicate(timeout=seconds(60))
    assert process.returncode in (1, 2)
    last = output.rstrip().splitlines()[-1]
    assert last.startswith("error: ") and last.endswith("--max_restarts 0 allows no more restarts")
