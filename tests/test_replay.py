"""Every example matches its formula: real runs of several workers, replayed in NumPy.

Also compared: the state that lives with the parameters, such as Adagrad's accumulators, the bytes
that a step or a round sends, and the simulation. The tests find the folders themselves.
"""

import argparse
import types

import formulas
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from conftest import ROOT, initialise
from formulas import folders
from gradients import softmax_gradient
from machine import seconds
from replays import (
    EXACT,
    SIZE,
    assert_replayed,
    class_of,
    distance,
    flat,
    formula,
    in_order,
    replayed,
    rounds,
    scheme_of,
    simulated,
)
from test_transfers import (
    assert_bytes,
    assert_one_large_transfer_each_way,
    assert_one_transfer_each_way,
    probed,
)

from common import data
from common.told import gpus
from common.told.example import example_of

STEPS = 60
pytestmark = pytest.mark.usefixtures("two_cores")  # one thread for each task


def assert_devices_are_named(finished) -> None:
    """Without a GPU the run says so, and each process says which device it computes on."""
    assert (finished.summary["workers"], finished.summary["ps"]) == (2, 1)
    assert gpus.count() or "no GPU found: using the CPU" in finished.output
    for k in (0, 1):
        log = (finished.results / "logs" / f"worker-{k}.log").read_text()
        assert f"worker {k} computes on " in log
        assert finished.events(k)


@pytest.mark.parametrize("example", folders())
def test_a_run_matches_its_formula(run, tmp_path, example):
    """Parameters and checkpoint; so does the simulation. Each step makes exactly one transfer each
    way; in synchronous schemes, the update makes none."""
    row = formulas.of(example)
    if row.scheme is None:
        pytest.skip("another test compares it with NumPy")
    kind = class_of(example).worker
    defaults, _ = example_of(ROOT / example / "worker.py")
    flags = ["--window", 5] if "window" in defaults else []
    if row.workers > 1:
        flags += ["--workers", row.workers]
        # So that steps overlap, however the cores are scheduled; elastic workers push before it.
        if kind == "asynchronous":
            flags += ["--delay", ",".join(f"{k}:{seconds(0.01)}" for k in range(row.workers))]
    finished = run(example, "--model", "linear", "--batch_size", 0, "--learning_rate", 0.3,
                   "--steps", STEPS, *flags, *row.flags,
                   root=probed(example, tmp_path / "mine"))  # fmt: skip
    if row.small:
        assert_one_large_transfer_each_way(finished)
    else:
        assert_one_transfer_each_way(finished)
    assert_bytes(finished, rounds=kind == "synchronous", bits=class_of(example).bits)
    scheme = scheme_of(example, finished.summary["flags"])
    assert_replayed(finished, scheme)
    assert distance(flat(finished), simulated(finished)) < EXACT
    if example == "Multiple-GPUs-Single-Machine":
        assert_devices_are_named(finished)
    if kind == "synchronous":
        assert rounds(finished) == [list(range(row.workers))] * STEPS
    elif row.workers > 1:
        assert finished.summary["staleness"]["max"] > 0  # otherwise staleness was not tested
    if kind == "asynchronous":  # a gradient is complete before its update
        every = [e for k in range(finished.summary["workers"]) for e in finished.events(k)]
        assert max(e["time"] - e["push"] - e["counted"] for e in every) < 1e-5
    parent = formulas.FOLDERS.get(row.parent)
    if parent and parent.scheme not in (None, row.scheme):
        other = scheme_of(row.parent, finished.summary["flags"])
        waits = (other.worker == "synchronous") != (kind == "synchronous")
        if not waits and formula(other) != formula(scheme):  # its own term is visible
            assert distance(flat(finished), replayed(finished, other)) > 10 * EXACT


def test_adaptive_compensation_matches_its_formula(run):
    """DC-ASGD's M is in the checkpoint, and its own term is visible."""
    finished = run("DC-ASGD", "--model", "linear", "--batch_size", 0, "--learning_rate", 0.3,
                   "--steps", STEPS, "--workers", 3, "--adaptive", "--dc_lambda", 0.5,
                   "--delay", ",".join(f"{k}:{seconds(0.01)}" for k in range(3)))  # fmt: skip
    told = finished.summary["flags"]
    assert_replayed(finished, scheme_of("DC-ASGD", told))
    assert distance(flat(finished), simulated(finished)) < EXACT
    other = scheme_of("DC-ASGD", told | {"adaptive": False})
    assert distance(flat(finished), replayed(finished, other)) > 10 * EXACT


ADAMW = "--window 5 --learning_rate 0.01 --inner_epsilon 1e-2"
SEVERAL = ["AEAMSGD --window 1", "SAGN --window 1", f"DiLoCo {ADAMW}", f"Async-DiLoCo {ADAMW}",
           "Sign-SGD --learning_rate 0.1"]  # fmt: skip


@pytest.mark.slow("the same schemes again")
@pytest.mark.parametrize("example", SEVERAL)
def test_several_steps_in_a_call_match_the_formula_too(run, example):
    """Each step in a call starts from the state after the previous one, on worker and ps."""
    example, *more = example.split()
    finished = run(example, "--model", "linear", "--batch_size", 0, "--learning_rate", 0.3, *more,
                   "--steps", STEPS + 1, "--steps_per_execution", 4)  # fmt: skip
    scheme = scheme_of(example, finished.summary["flags"])
    assert distance(flat(finished), replayed(finished, scheme)) < EXACT


WINDOWED = [name for name, row in formulas.FOLDERS.items() if row.scheme == name]
WINDOWED = [name for name in WINDOWED if "window" in class_of(name).defaults]


@pytest.mark.slow("every scheme with a window again")
@pytest.mark.parametrize("example", WINDOWED)
def test_each_local_step_has_a_fresh_batch(run, example):
    """One worker takes the batches in the order in which its pipeline gives them."""
    fixed = ["--model", "linear", "--batch_size", 100, "--window", 4, "--steps", 20]
    finite = ["--inner_epsilon", 1e-2] if "DiLoCo" in example else []
    finished = run(example, *fixed, "--workers", 1, *finite)
    told = argparse.Namespace(**finished.summary["flags"])
    with tf.Graph().as_default(), tf.Session() as session:
        batch = data.batches(told, worker=0, workers=1)()
        initialise(session)
        batches = [session.run(batch) for _ in range(80)]

    def fresh(_, w):
        x, labels = batches.pop(0)
        x = x.reshape(len(x), 64).astype(float)
        parts = softmax_gradient(w[:640].reshape(64, 10), w[640:], x, labels)
        return np.concatenate([part.ravel() for part in parts])

    scheme = class_of(example)(told, fresh, np.zeros(SIZE))
    assert distance(flat(finished), replayed(finished, scheme)) < EXACT
    assert not batches


def test_the_catalogue_must_name_all_that_a_checkpoint_holds(tmp_path):
    """One update of DOWNPOUR-Easy by hand: with its state as it should be, changed, missing, and
    with a slot that the class does not name."""
    flags = {"learning_rate": 5, "workers": 1, "window": 1}
    scheme = scheme_of("DOWNPOUR-Easy", flags)
    w = in_order(scheme, [(1, 0, 0)])[-1]
    parts = {"weights_0": np.s_[:640], "biases_0": np.s_[640:]}

    def assert_it(**slots):
        results = tmp_path / str(len(list(tmp_path.iterdir())))
        (results / "checkpoints").mkdir(parents=True)
        np.savez(results / "parameters.npz", **{name: w[part] for name, part in parts.items()})
        event = {"global_step": 1, "pulled_at": 0}
        with tf.Graph().as_default(), tf.Session() as session:
            tf.Variable(1, name="global_step")
            for name, part in parts.items():
                tf.Variable(w[part], name=name)
                for slot, values in slots.items():
                    tf.Variable(values[part], name=f"{name}/{slot}")
            session.run(tf.global_variables_initializer())
            tf.train.Saver().save(session, f"{results}/checkpoints/model.ckpt-1")
        finished = types.SimpleNamespace(
            results=results, summary={"global_step": 1, "workers": 1},
            parameters=[w[part] for part in parts.values()], events=lambda k: [event],
        )  # fmt: skip
        assert_replayed(finished, scheme_of("DOWNPOUR-Easy", flags))

    assert_it(Adagrad=scheme.G)
    with pytest.raises(AssertionError, match="Adagrad"):
        assert_it(Adagrad=scheme.G * (1 + 2 * EXACT))
    with pytest.raises(AssertionError, match=r"DownpourEasy.state\(\) in .* must name it"):
        assert_it(Adagrad=scheme.G, Momentum=0 * scheme.G)
    with pytest.raises(AssertionError, match=r"no .*biases_0/Adagrad.* in the checkpoint"):
        assert_it()


@pytest.mark.slow("a changed scheme")
def test_a_detour_over_the_chief_is_found(run, tmp_path):
    """Local-SGD that computes the mean before the `with`, so on the chief: its parameters are
    right, but each round sends them twice more. (A check refuses such a graph; here it does not.)
    """
    root = probed("Local-SGD", tmp_path / "mine")
    script = root / "Local-SGD" / "worker.py"
    text = script.read_text()
    opening = "with session.next_update("
    assert text.count(opening) == 1
    detour = "gathered = gathered._replace(values=[1.0 * w for w in gathered.values])"
    script.write_text(text.replace(opening, f"{detour}\n{opening}"))
    checks = root / "common" / "training" / "checks.py"
    checks.write_text(f"{checks.read_text()}\n\ndef check_update(*_):\n    pass\n")
    finished = run("Local-SGD", "--model", "linear", "--batch_size", 0, "--learning_rate", 0.3,
                   "--steps", STEPS, "--window", 5, root=root)  # fmt: skip
    scheme = scheme_of("Local-SGD", finished.summary["flags"])
    assert distance(flat(finished), replayed(finished, scheme)) < EXACT
    assert_one_transfer_each_way(finished)
    with pytest.raises(AssertionError, match=r"each round sends 5,2\d\d bytes"):
        assert_bytes(finished, rounds=True)
