"""The examples as a user runs them: what they reach, what they write, what stays private."""

import json
import re

import numpy as np
import pytest
import rebuilt
import sweep
import tensorflow.compat.v1 as tf
from conftest import ENDLESS, ROOT, eventually, processes, reach
from machine import seconds

from common.launch import network
from common.record import closing, trace
from common.told import addresses
from common.told.example import example_of

EXAMPLES = ["Non-Distributed-Setup", "Distributed-Setup", "HogWild"]
SUMMARY = {
    "scheme": str, "flags": dict, "workers": int, "ps": int, "global_step": int, "examples": int,
    "seconds": float, "examples_per_second": float, "bytes_per_step": (float, type(None)),
    "link_use": type(None), "test_accuracy": float, "test_loss": float,
    "staleness": dict, "tasks": list, "versions": dict,
}  # fmt: skip


@pytest.mark.slow("2,000 steps each")
@pytest.mark.parametrize("example", EXAMPLES)
def test_defaults_learn_the_digits_and_keep_the_contract(default_run, example):
    finished = default_run(example)
    summary = finished.summary
    assert summary.keys() == SUMMARY.keys()
    assert all(isinstance(summary[key], kind) for key, kind in SUMMARY.items())
    assert summary["test_accuracy"] >= 0.96
    assert summary["scheme"] == example
    assert summary["global_step"] == summary["flags"]["steps"] == 2000
    assert summary["examples"] == 2000 * 32
    assert summary["examples_per_second"] == pytest.approx(64000 / summary["seconds"])

    workers = [task for task in summary["tasks"] if task["job"] == "worker"]
    assert len(workers) == summary["workers"] == (2 if example == "HogWild" else 1)
    assert len(summary["tasks"]) == len(workers) + summary["ps"]
    assert summary["ps"] == (example != "Non-Distributed-Setup")
    for task in summary["tasks"]:
        assert task["exit_code"] == 0
        assert task["restarts"] == 0
        assert {"job", "index", "local_steps", "examples", "seconds"} <= set(task)
    assert sum(task["local_steps"] for task in summary["tasks"]) == 2000
    assert all(task["examples"] == 32 * task["local_steps"] for task in workers)

    events = [event for k in range(len(workers)) for event in finished.events(k)]
    assert sorted(event["global_step"] for event in events) == list(range(1, 2001))
    for event in events:
        assert {"time", "local_step", "global_step", "loss", "staleness"} <= set(event)
        assert event["staleness"] == event["global_step"] - 1 - event["pulled_at"] >= 0
        assert (event["pull"] + event["push"] > 0) == (summary["ps"] > 0)
    histogram = {int(s): n for s, n in summary["staleness"]["histogram"].items()}
    stale = [event["staleness"] for event in events]
    assert histogram == {s: stale.count(s) for s in set(stale)}
    assert summary["staleness"]["mean"] == pytest.approx(np.mean(stale))
    assert summary["staleness"]["max"] == max(stale)

    events.sort(key=lambda event: event["global_step"])
    losses = [event["loss"] for event in events]
    assert np.mean(losses[-100:]) < 0.1 * np.mean(losses[:10])

    shapes = [array.shape for array in finished.parameters]
    assert shapes == [(64, 128), (128,), (128, 10), (10,)]
    assert (finished.results / "curves.png").read_bytes().startswith(b"\x89PNG")
    for task in summary["tasks"]:
        assert (finished.results / "logs" / f"{task['job']}-{task['index']}.log").is_file()
    assert list((finished.results / "checkpoints").glob("model.ckpt-2000.index"))
    assert list(finished.results.rglob("events.out.tfevents.*"))
    assert not list(finished.results.rglob(".*"))  # nothing half-written

    lines = finished.output.rstrip().splitlines()
    assert re.fullmatch(r"test accuracy 9[6-9]\.\d\d%; results in .*", lines[-1])
    for k in range(len(workers)):  # the last line of each worker is its last step
        said = [line for line in lines if line.startswith(f"[worker {k}] step ")]
        event = finished.events(k)[-1]
        assert said[-1] == trace.line(k, *map(event.get, ("global_step", "loss", "staleness")))
        *_, step, at_end = (finished.results / "logs" / f"worker-{k}.log").read_text().splitlines()
        assert at_end == closing.line(k, workers[k])  # the same as in the table
        if k:  # the chief has said more in between
            assert step == said[-1]
    head = "task +batches +examples/s +computing +communicating +waiting +exit"
    assert any(re.fullmatch(head, line) for line in lines)


@pytest.mark.slow("2,000 steps")
def test_threads_keep_the_contract(run):
    """A run with N threads leaves the results of N workers, and has no ps."""
    finished = run("HogWild", "--threads", 3)
    summary = finished.summary
    assert summary.keys() == SUMMARY.keys()
    assert all(isinstance(summary[key], kind) for key, kind in SUMMARY.items())
    assert (summary["workers"], summary["ps"], summary["global_step"]) == (3, 0, 2000)
    assert [(task["job"], task["index"]) for task in summary["tasks"]] == [
        ("worker", 0), ("worker", 1), ("worker", 2)]  # fmt: skip
    assert [path.name for path in (finished.results / "logs").iterdir()] == ["worker-0.log"]
    every = [event for k in range(3) for event in finished.events(k)]
    assert sorted(event["global_step"] for event in every) == list(range(1, 2001))
    assert min(len(finished.events(k)) for k in range(3)) > 50
    assert not any(event["pull"] + event["push"] for event in every)  # no transfers
    assert summary["examples"] == 2000 * 32
    assert summary["test_accuracy"] >= 0.95
    rebuilt.assert_the_same(finished)


@pytest.mark.slow("a run and a client")
def test_parameters_live_on_the_ps_and_are_shared(start, monkeypatch):
    """A client that knows only the variables' names finds them on the ps, and sees them change."""
    monkeypatch.setenv("no_proxy", "localhost")  # gRPC would use a proxy
    process, where = start("HogWild", "--workers", 1, "--steps", ENDLESS, "--network", "host")
    reach(where, 1)
    (command,) = {c for c in processes().values() if "ps.py" in c}
    (address,) = re.findall(r"--ps_hosts (\S+)", command)
    names = {"weights_0": [64, 128], "biases_0": [128], "weights_1": [128, 10], "biases_1": [10]}
    with tf.Graph().as_default():
        with tf.device("/job:ps/task:0"):
            variables = [tf.Variable(lambda s=s: tf.zeros(s), name=n) for n, s in names.items()]
            step = tf.train.get_or_create_global_step()
        with tf.Session(f"grpc://{address}") as session:  # nothing is initialised here
            before = session.run([step, *variables])
            assert eventually(lambda: session.run(step) >= before[0] + 100, 60)
            after = session.run([step, *variables])
    assert [v.device for v in [step, *variables]] == ["/job:ps/task:0"] * 5
    assert all(np.abs(b - a).max() > 0 for a, b in zip(before, after))
    process.terminate()
    output, _ = process.communicate(timeout=seconds(10))
    assert "warning: the servers of this run listen on all interfaces" in output


@pytest.mark.slow("a run that sleeps")
def test_a_straggler_is_slow_and_its_gradients_are_stale(run):
    """When worker 0 has reached the target accuracy, both stop."""
    delay = seconds(0.05)
    # At this rate it takes over 1,000 updates: worker 1 has made some steps by then.
    target = ["--steps", 100000, "--target_accuracy", 0.95, "--learning_rate", 0.01]
    finished = run("HogWild", *target, "--delay", f"1:{delay}")
    slow, fast = finished.events(1), finished.events(0)
    assert len(slow) * 5 < len(fast)
    # Worker 1 learns of the stop up to half a second later; then no other worker pushes.
    stale = [event["staleness"] for event in slow if event["time"] < fast[-1]["time"]]
    assert np.mean(stale) > 5
    assert all(event["compute"] + event["pull"] >= delay for event in slow)
    found = trace.read_evaluations(finished.results)
    # The last evaluation is of later parameters: worker 1 still pushed after the target.
    assert max(each["test_accuracy"] for each in found[:-1]) >= 0.95
    assert finished.summary["global_step"] < 20000


@pytest.mark.slow("600 exchanges each")
@pytest.mark.parametrize("example", ("AEASGD", "AEAMSGD"))
def test_an_elastic_push_does_not_wait_for_the_local_steps(run, example):
    """With one thread, some hundred exchanges pass before pushes begin to wait."""
    finished = run(example, "--model", "cnn", "--batch_size", 64, "--steps", 600)
    later = [e for k in (0, 1) for e in finished.events(k)[150:]]
    assert np.mean([e["out"] > e["compute"] for e in later]) < 0.25


@pytest.mark.slow("a separate run")
def test_npz_and_cnn(run, tmp_path):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 300)
    x = rng.random((300, 6, 6)) * 0.2
    x[np.arange(300), labels, labels] += 1
    names = ("x_train", "y_train", "x_test", "y_test")
    np.savez(
        tmp_path / "own.npz", **dict(zip(names, (x[:200], labels[:200], x[200:], labels[200:])))
    )
    flags = ["--data", tmp_path / "own.npz", "--model", "cnn", "--steps", 300]
    finished = run("Distributed-Setup", *flags)
    assert finished.summary["test_accuracy"] > 0.9
    assert finished.parameters[-1].shape == (3,)


@pytest.mark.slow("a separate run")
@pytest.mark.skipif(bool(network.can_be_private()), reason=network.can_be_private())
def test_a_private_run_cannot_be_reached(start):
    process, where = start("HogWild", "--workers", 1, "--steps", ENDLESS, "--network", "private")
    reach(where, 1)
    (command,) = {c for c in processes().values() if "ps.py" in c}
    (address,) = re.findall(r"--ps_hosts (\S+)", command)
    assert not addresses.answers(address)
    process.terminate()
    output, _ = process.communicate(timeout=seconds(10))
    assert "warning" not in output


def test_plumbing_files_are_the_same_everywhere():
    """run.sh is the same in all examples, ps.py in all that have parameter servers."""
    for name in ("run.sh", "ps.py"):
        copies = list(ROOT.glob(f"*/{name}"))
        # Many-Workers starts no processes; Several-Machines starts those of other folders.
        others = ("tests", "common", "Many-Workers", "Several-Machines")
        copies = [path for path in copies if path.parent.name not in others]
        assert len(copies) >= 2
        assert len({path.read_text() for path in copies}) == 1


def test_defaults_are_those_of_the_sweep():
    """At its default rate, and at twice that, each scheme reached 95 % on the digits with every
    seed, with two and with four workers."""
    found = json.loads((ROOT / "measure" / "sweep.json").read_text())
    for example in sweep.examples():
        defaults, _ = example_of(ROOT / example / "worker.py")
        for factor in (1, 2):
            reached = found[example][str(factor * defaults["learning_rate"])]
            assert min(reached["2"] + reached["4"]) >= 0.95, (example, factor)
