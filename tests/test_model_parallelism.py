"""Model-Parallelism: both splits and the pipeline compute the same as the undivided network, and
send what they should."""

import argparse
import importlib.util
import itertools
import json
import re

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from conftest import ROOT, initialise, kill_and_see_it_back, reach
from gradients import digits
from machine import seconds
from test_documented import assert_clocks_and_transfers

from common import data
from common import flags as command_line
from common.told.example import example_of

EXAMPLE, HIDDEN, STEPS, RATE = "Model-Parallelism", 128, 50, 0.02
EXACT = 1e-5
FLAGS = ("--hidden", HIDDEN, "--steps", STEPS, "--batch_size", 0, "--learning_rate", RATE)


def module(name: str):
    """One of the folder's modules."""
    spec = importlib.util.spec_from_file_location(name, ROOT / EXAMPLE / f"{name}.py")
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


costs, network = module("costs"), module("network")


def initial(seed: int = 0) -> list[np.ndarray]:
    """The initial parameters, as network.py documents them."""
    params = []
    for i, (inputs, outputs) in enumerate(zip([64] + 3 * [HIDDEN], 3 * [HIDDEN] + [10])):
        with tf.Graph().as_default(), tf.Session() as session:
            normal = session.run(tf.random.stateless_normal([inputs, outputs], seed=[seed, i]))
        params += [np.sqrt(2 / inputs) * normal.astype(float), np.zeros(outputs)]
    return params


def descended(params: list[np.ndarray], batches) -> list[np.ndarray]:
    """Gradient descent on the undivided network, written from its formulas."""
    for x, labels in batches:
        inputs = [x]
        for i in (0, 2, 4):
            inputs.append(np.maximum(inputs[-1] @ params[i] + params[i + 1], 0))
        scores = inputs[-1] @ params[6] + params[7]
        p = np.exp(scores - scores.max(axis=1, keepdims=True))
        d = p / p.sum(axis=1, keepdims=True)
        d[np.arange(len(labels)), labels] -= 1
        d /= len(labels)
        grads = []
        for i in (6, 4, 2, 0):
            grads = [inputs[i // 2].T @ d, d.sum(axis=0), *grads]
            d = (d @ params[i].T) * (inputs[i // 2] > 0)
        params = [w - RATE * g for w, g in zip(params, grads)]
    return params


def expected(batches) -> list[np.ndarray]:
    begun = initial()
    found = descended(begun, batches)
    moved = max(np.abs(a - b).max() for a, b in zip(found, begun))
    assert moved > 1000 * EXACT  # otherwise the comparison would mean little
    return found


def mini_batches(finished) -> list:
    """Those of a run: the ones that the other examples draw."""
    with tf.Graph().as_default(), tf.Session() as session:
        batch = data.batches(argparse.Namespace(**finished.summary["flags"]), 0, 1)()
        initialise(session)
        drawn = [session.run(batch) for _ in range(STEPS)]
    return [(x.reshape(len(x), -1).astype(float), labels) for x, labels in drawn]


def assert_equal(measured: list[np.ndarray], expected: list[np.ndarray]) -> None:
    assert [a.shape for a in measured] == [a.shape for a in expected]
    for a, b in zip(measured, expected):
        assert np.abs(a - b).max() < EXACT


def joined(finished) -> list[np.ndarray]:
    """The parameters of a run with --split units, joined."""
    with np.load(finished.results / "parameters.npz") as file:
        found, workers = {name: file[name] for name in file.files}, finished.summary["workers"]
    params = []
    for i in (0, 2):
        parts = [[found[f"{kind}_{k}"] for k in range(workers)]
                 for kind in (f"weights_{i}", f"biases_{i}", f"weights_{i + 1}")]  # fmt: skip
        params += [np.concatenate(parts[0], axis=1), np.concatenate(parts[1]),
                   np.concatenate(parts[2], axis=0), found[f"biases_{i + 1}"]]  # fmt: skip
    return params


def assert_travelled_as_on_paper(finished, batch: int) -> None:
    """What the traced call sent. If it makes several steps, TensorFlow may miss some transfers."""
    sent, scalars = costs.travelled(finished.results)
    flags = finished.summary["flags"] | {"batch_size": batch}
    steps, paper = flags["steps_per_execution"], costs.on_paper(flags)
    if steps == 1:  # the notebook compares both kinds of split like that
        assert sent == paper and scalars > 0
    assert sent.keys() <= paper.keys()
    assert all(size <= steps * paper[ends] for ends, size in sent.items())
    assert scalars < 100 * costs.SCALAR * steps


def assert_pipelined(finished) -> None:
    """The parts of each step follow GPipe's order, and workers compute at the same time."""
    m, p = (finished.summary["flags"][name] for name in ("micro_batches", "workers"))
    overlaps = 0
    for step in costs.steps(finished.results):
        at = {(what, k, i): (begin, end) for what, k, i, begin, end in step}
        assert len(at) == len(step) == 2 * m * p
        for k in range(p):
            order = [("forward", k, i) for i in range(m)]
            order += [("backward", k, i) for i in reversed(range(m))]
            times = [time for part in order for time in at[part]]
            assert times == sorted(times)  # each worker computes one part after another
        for k in range(p - 1):
            for i in range(m):
                # Compares start times: a result may arrive before the end of its part is noted.
                assert at["forward", k, i][0] < at["forward", k + 1, i][0]
                assert at["backward", k + 1, i][0] < at["backward", k, i][0]
        overlaps += any(
            a[1] + 1 == b[1] and a[2] > b[2] and a[3] < b[4] and b[3] < a[4]
            for a, b in itertools.permutations(step[: m * p], 2)
        )  # a worker computes a micro-batch, the next worker an earlier one
    assert overlaps or m == 1 or p == 1


def test_the_pipeline_by_layer_is_exact(run):
    """With 5 micro-batches of different sizes, since 1437 is not a multiple of 5."""
    finished = run(EXAMPLE, *FLAGS, "--micro_batches", 5, curves=True)
    assert_equal(finished.parameters, expected([digits()] * STEPS))
    assert_travelled_as_on_paper(finished, 1437)
    assert_pipelined(finished)
    summary = finished.summary
    assert (summary["workers"], summary["ps"], summary["global_step"]) == (2, 2, STEPS)
    assert summary["examples"] == STEPS * 1437
    assert [task["examples"] for task in summary["tasks"]] == [0, 0, STEPS * 1437, 0, 0]
    assert [task["exit_code"] for task in summary["tasks"]] == [0] * 5
    events = finished.events()
    assert [event["global_step"] for event in events] == list(range(1, STEPS + 1))
    assert not any(event["staleness"] for event in events)
    assert not (finished.results / "events-worker-1.jsonl").exists()
    assert (finished.results / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert re.search(r"^worker 1 +0$", finished.output, re.M)  # it serves
    assert_clocks_and_transfers(finished)


@pytest.mark.slow("the other split")
def test_within_layers_is_exact(run):
    """Three workers, with 42, 43 and 43 of 128 units; on mini-batches, several steps in a call."""
    finished = run(EXAMPLE, *FLAGS, "--split", "units", "--workers", 3, "--ps", 1,
                   "--batch_size", 128, "--steps_per_execution", 7)  # fmt: skip
    assert finished.summary["examples"] == STEPS * 128
    assert_equal(joined(finished), expected(mini_batches(finished)))
    assert_travelled_as_on_paper(finished, 128)
    x, labels = digits("test")
    *layers, weights, biases = joined(finished)
    for w, b in zip(layers[::2], layers[1::2]):
        x = np.maximum(x @ w + b, 0)
    right = np.mean((x @ weights + biases).argmax(axis=1) == labels)
    assert finished.summary["test_accuracy"] == pytest.approx(right)


@pytest.mark.slow("four workers")
def test_a_worker_for_every_layer_is_exact(run):
    """On mini-batches, each in micro-batches of 43, 43 and 42 examples."""
    finished = run(EXAMPLE, *FLAGS, "--ps", 1, "--workers", 4, "--micro_batches", 3,
                   "--batch_size", 128)  # fmt: skip
    assert finished.summary["examples"] == STEPS * 128
    assert_equal(finished.parameters, expected(mini_batches(finished)))
    assert_travelled_as_on_paper(finished, 128)
    assert_pipelined(finished)


@pytest.mark.slow("waits until killed tasks are back")
def test_killed_tasks_come_back(start):
    """A worker and a ps are killed in turn; the run continues and completes. A killed chief of the
    same kind: `test_in_graph.py`."""
    delay = seconds(0.02)  # so that the run does not end before all are back
    flags = ("--hidden", 64, "--micro_batches", 2, "--steps", 150, "--delay", f"0:{delay}")
    process, where = start(EXAMPLE, *flags)
    reach(where, 30)
    for job, index in (("worker", 1), ("ps", 1)):
        kill_and_see_it_back(where, job, index, workers=1)
    output, _ = process.communicate(timeout=seconds(120))
    assert process.returncode == 0, output
    summary = json.loads((where / "summary.json").read_text())
    assert summary["global_step"] == 150
    restarts = {(task["job"], task["index"]): task["restarts"] for task in summary["tasks"]}
    assert restarts == {("ps", 0): 0, ("ps", 1): 1, ("worker", 0): 0, ("worker", 1): 1,
                        ("chief", 0): 0}  # fmt: skip
    assert summary["test_accuracy"] > 0.9


SENTENCES = [
    ("--workers 5", "--workers 5", "each needs a layer", "only 4"),
    ("--split units --hidden 1", "--workers 2", "each needs a unit", "only 1"),
    ("--micro_batches 0", "--micro_batches 0", "from 1 to", "128"),
    ("--batch_size 0 --micro_batches 1438", "--micro_batches 1438", "from 1 to", "1437"),
    ("--split units --micro_batches 2", "--micro_batches", "leave it out"),
    ("--split rows", "--split", "layers, units", "'rows'"),
    ("--delay 1:0.1", "--delay", "0:SECONDS"),
    ("--model mlp", "--model", "four_layers"),
]


@pytest.mark.parametrize("flags, words", [(flags, words) for flags, *words in SENTENCES])
def test_a_mistake_gives_a_one_line_error(capsys, flags, words):
    defaults, _ = example_of(ROOT / EXAMPLE / "chief.py")
    with pytest.raises(SystemExit) as ended:
        network.check(command_line.parser(defaults).parse_args(flags.split()))
    assert ended.value.code == 2
    last = capsys.readouterr().err.rstrip().splitlines()[-1]
    assert "error: " in last and all(word in last for word in words), last


@pytest.mark.slow("tests how a run ends, not the scheme")
def test_a_run_ends_with_the_mistake(run):
    finished = run(EXAMPLE, "--micro_batches", 0, "--workers", 1, "--ps", 1, ok=False)
    assert finished.code == 2
    assert finished.output.rstrip().splitlines()[-1].startswith("error: --micro_batches 0: ")


def test_a_bubble_is_measured():
    """Two workers, two micro-batches: the worked example, a third of the time idle."""
    step = [["forward", 0, 0, 10, 11], ["forward", 0, 1, 11, 12], ["forward", 1, 0, 11, 12],
            ["forward", 1, 1, 12, 13], ["backward", 1, 1, 13, 14], ["backward", 1, 0, 14, 15],
            ["backward", 0, 1, 14, 15], ["backward", 0, 0, 15, 16]]  # fmt: skip
    assert costs.span(step) == 6
    assert costs.bubble(step) == pytest.approx(1 / 3)


def test_traced_steps_are_left_out():
    source = (ROOT / EXAMPLE / "watch.py").read_text()
    assert int(re.search(r"^TRACED = range\(\d+, (\d+)\)", source, re.M)[1]) <= costs.FIRST


def test_a_typical_step_is_near_both_medians(tmp_path):
    """It is not one with the median idle share but an unusual length."""

    def step(unit: float) -> list:
        return [["forward", 0, 0, 0, unit], ["backward", 1, 0, unit, 2 * unit]]

    lines = [json.dumps(step(unit)) for unit in [99] * costs.FIRST + [5, 1, 2, 2.1, 9]]
    (tmp_path / "clocks.jsonl").write_text("\n".join(lines))
    assert costs.typical([tmp_path]) == step(2.1)


def test_what_is_sent_is_calculated(tmp_path):
    """For sizes that a reader can check by hand; scalars do not count."""
    flags = {"data": "digits", "workers": 2, "ps": 2, "batch_size": 10, "hidden": 100}
    layers = costs.on_paper(flags | {"split": "layers"})
    assert layers["worker 0", "worker 1"] == layers["worker 1", "worker 0"] == 4 * 10 * 100
    assert layers["ps 0", "worker 0"] == 4 * (65 * 100 + 101 * 100)
    assert layers["worker 1", "ps 1"] == 4 * (101 * 100 + 101 * 10)
    assert layers["chief 0", "worker 0"] == 4 * 10 * 64
    assert layers["chief 0", "worker 1"] == 8 * 10
    units = costs.on_paper(flags | {"split": "units"})
    assert units["worker 0", "worker 1"] == 4 * 10 * (2 * 100 + 10)
    (tmp_path / "transfers.json").write_text(json.dumps([["a 0", "b 0", 100], ["a 0", "b 0", 8]]))
    assert costs.travelled(tmp_path) == ({("a 0", "b 0"): 100}, 8)
