"""Every example matches its formula: real runs of several workers, replayed in NumPy.

An asynchronous run never repeats exactly, but its events explain it fully: the order of the updates
and, for each, how many updates its starting parameters contained. All runs use full batches and
`linear`, so nothing else is random. The tests find the folders themselves.
"""

import json

import formulas
import numpy as np
import pytest
import simulate
from formulas import folders
from machine import seconds
from replay import Recorded
from schemes import SCHEMES
from test_transfers import assert_one_transfer_each_way, probed

from common.told import gpus
from common.told.example import example_of

STEPS = 60
pytestmark = pytest.mark.usefixtures("two_cores")  # one thread for each task
EXACT = 1e-5  # relative to the largest parameter


def flat(finished) -> np.ndarray:
    return np.concatenate([array.ravel() for array in finished.parameters])


def replayed(finished, scheme: formulas.HogWild) -> np.ndarray:
    """The global parameters after all updates, from the events of an asynchronous run."""
    workers = range(finished.summary["workers"])
    events = [(e["global_step"], e["pulled_at"], k) for k in workers for e in finished.events(k)]
    history = [np.zeros(650)]  # after 0, 1, 2, ... updates
    for number, (global_step, pulled_at, k) in enumerate(sorted(events)):
        assert global_step == number + 1  # each update once
        pulled = history[pulled_at]
        push = scheme.push(k, pulled)
        history.append(scheme.update(history[-1], push, number - pulled_at, pulled))
    return history[-1]


def together(finished, scheme: formulas.SynchronousSGD) -> np.ndarray:
    """The same for a synchronous run, in which every round has a push from every worker."""
    w, everyone = np.zeros(650), list(range(finished.summary["workers"]))
    made = (finished.results / "updates.jsonl").read_text().splitlines()
    assert [json.loads(line)["workers"] for line in made] == [everyone] * len(made)
    for _ in made:
        w = scheme.round(w)
    return w


def simulated(finished) -> np.ndarray:
    """The global parameters if Many-Workers does the same: in the same order, unless the workers
    wait for each other."""
    told = finished.summary["flags"]
    own = {name: told[name] for name in SCHEMES[finished.summary["scheme"]].defaults}
    options = simulate.options(scheme=finished.summary["scheme"], workers=told["workers"],
                               model="linear", batch_size=0, steps=told["steps"],
                               **own)  # fmt: skip
    events = [finished.events(k) for k in range(told["workers"])]

    def cluster_of(*arguments):
        rounds = arguments[1].worker == "synchronous"
        return simulate.Cluster(*arguments) if rounds else Recorded(events, *arguments)

    cluster, _ = simulate.simulate(options, make_cluster=cluster_of)
    assert cluster.updates == told["steps"]
    return cluster.w


def distance(measured: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference, relative to the largest parameter."""
    assert np.abs(expected).max() > 0.1  # it has learnt, so the comparison means something
    return np.abs(measured - expected).max() / np.abs(expected).max()


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
    """So does the simulation. And each step makes exactly one transfer each way."""
    entry = formulas.of(example)
    if entry.formula is None:
        pytest.skip("another test compares it with NumPy")
    defaults, _ = example_of(formulas.ROOT / example / "worker.py")
    windows = ["--window", 5] if "window" in defaults else []
    in_rounds = issubclass(entry.formula, formulas.SynchronousSGD)
    workers = [] if example == "Distributed-Setup" else ["--workers", entry.workers]
    elastic = issubclass(entry.formula, formulas.AEAMSGD)
    # So that steps overlap, however the cores are scheduled; elastic workers push before the delay.
    if workers and not (in_rounds or elastic):
        workers += ["--delay", ",".join(f"{k}:{seconds(0.01)}" for k in range(entry.workers))]
    finished = run(example, "--model", "linear", "--batch_size", 0, "--learning_rate", 0.3,
                   "--steps", STEPS, *workers, *windows, *entry.flags,
                   root=probed(example, tmp_path / "mine"))  # fmt: skip
    assert_one_transfer_each_way(finished)
    scheme = entry.formula(finished.summary["flags"], np.zeros(650))
    replay = together if in_rounds else replayed
    assert distance(flat(finished), replay(finished, scheme)) < EXACT
    if example in SCHEMES:
        assert distance(flat(finished), simulated(finished)) < EXACT
    if example == "Multiple-GPUs-Single-Machine":
        assert_devices_are_named(finished)
    if not (in_rounds or elastic):  # a gradient is complete before its update
        every = [e for k in range(finished.summary["workers"]) for e in finished.events(k)]
        assert max(e["time"] - e["push"] - e["counted"] for e in every) < 1e-5
    if workers and replay is replayed:
        assert finished.summary["staleness"]["max"] > 0  # otherwise staleness was not tested
    if entry.flags:  # its own term makes the scheme differ from its parent
        parent = formulas.of(entry.parent).formula(finished.summary["flags"], np.zeros(650))
        assert distance(flat(finished), replay(finished, parent)) > 10 * EXACT


SEVERAL = ["AEAMSGD --window 1", "SAGN --window 1"]


@pytest.mark.slow("the same schemes again")
@pytest.mark.parametrize("example", SEVERAL)
def test_several_steps_in_a_call_match_the_formula_too(run, example):
    """Each step in a call starts from the state after the previous one, on worker and ps."""
    example, *window = example.split()
    finished = run(example, "--model", "linear", "--batch_size", 0, "--learning_rate", 0.3, *window,
                   "--steps", STEPS + 1, "--steps_per_execution", 4)  # fmt: skip
    scheme = formulas.of(example).formula(finished.summary["flags"], np.zeros(650))
    replay = together if isinstance(scheme, formulas.SynchronousSGD) else replayed
    assert distance(flat(finished), replay(finished, scheme)) < EXACT
