"""Replays real runs: with the schemes of `Many-Workers/schemes.py`, and in its simulation.

An asynchronous run never repeats exactly, but its events explain it fully: the order of the updates
and, for each, how many updates its starting parameters contained. The runs use full batches and
`linear`, so nothing else is random.
"""

import argparse
import json

import formulas
import gradients
import numpy as np
import schemes
import simulate
from replay import Recorded

from common.training import checkpoints

SIZE = 650  # parameters of `linear` on the digits
EXACT = 1e-5  # relative to the largest parameter


def flat(finished) -> np.ndarray:
    return np.concatenate([array.ravel() for array in finished.parameters])


def class_of(example: str) -> type[schemes.Scheme]:
    """The class of a folder's scheme.

    Raises:
        AssertionError: if there is none; says what to do.
    """
    name = formulas.of(example).scheme
    assert name in schemes.SCHEMES, f"write {name} as a class in Many-Workers/schemes.py"
    return schemes.SCHEMES[name]


def scheme_of(example: str, flags: dict) -> schemes.Scheme:
    """A folder's scheme with these flags, and the gradient of `gradients.py`, at the start."""
    own = argparse.Namespace(**flags)
    return class_of(example)(own, gradients.gradients(own.workers), np.zeros(SIZE))


def formula(scheme: schemes.Scheme) -> list:
    """What its workers send, and what the ps does with it; not who waits."""
    names = "contribution", "local_steps", "update", "update_round"
    return [getattr(type(scheme), name, None) for name in names]


def replayed(finished, scheme: schemes.Scheme) -> np.ndarray:
    """The global parameters after all updates of a run; afterwards, `scheme` has its last state."""
    return history(finished, scheme)[-1]


def history(finished, scheme: schemes.Scheme, seen=lambda: None) -> list[np.ndarray]:
    """The global parameters after 0, 1, 2, ... updates of a run. Calls `seen()` after each."""
    if scheme.worker == "synchronous":
        return in_rounds(scheme, rounds(finished), seen)
    workers = range(finished.summary["workers"])
    events = [(e["global_step"], e["pulled_at"], k) for k in workers for e in finished.events(k)]
    return in_order(scheme, sorted(events), seen)


def in_order(scheme, events: list[tuple[int, int, int]], seen=lambda: None) -> list[np.ndarray]:
    """The global parameters after 0, 1, 2, ... asynchronous updates.

    Args:
        events: of each update, in order: its number from 1, how many updates its starting
            parameters contained, and the worker.
    """
    made = [np.zeros(SIZE)]
    for before, (number, pulled_at, k) in enumerate(events):
        assert number == before + 1  # each update once
        pulled = made[pulled_at]
        push = scheme.contribution(k, pulled)
        made.append(scheme.update(made[-1], push, before - pulled_at, pulled))
        seen()
    return made


def in_rounds(scheme, workers: list[list[int]], seen=lambda: None) -> list[np.ndarray]:
    """The same for a synchronous scheme. `workers`: those that contributed to each update."""
    made = [np.zeros(SIZE)]
    for those in workers:
        pushes = {k: scheme.contribution(k, made[-1]) for k in those}
        made.append(scheme.update_round(made[-1], pushes))
        seen()
    return made


def rounds(finished) -> list[list[int]]:
    """The workers that contributed to each update of a synchronous run."""
    lines = (finished.results / "updates.jsonl").read_text().splitlines()
    made = [json.loads(line) for line in lines]
    assert [update["global_step"] for update in made] == list(range(1, len(made) + 1))
    return [update["workers"] for update in made]


def distance(measured: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference, relative to the largest parameter."""
    assert np.abs(expected).max() > 0.1  # it has learnt, so the comparison means something
    return np.abs(measured - expected).max() / np.abs(expected).max()


def assert_replayed(finished, scheme: schemes.Scheme) -> None:
    """The run's parameters are the replayed ones. Its newest checkpoint holds them, the scheme's
    state, and no more.

    A state may be small in the end, as a difference of large numbers. So it is compared relative to
    the largest value that it has had.
    """
    largest: dict[str, float] = {}

    def look():
        for slot, value in scheme.state().items():
            largest[slot] = max(largest.get(slot, 0), np.abs(value).max())

    w = history(finished, scheme, look)[-1]
    assert distance(flat(finished), w) < EXACT
    with np.load(finished.results / "parameters.npz") as file:
        params = file.files
    saved = checkpoints.values(checkpoints.newest(str(finished.results / "checkpoints")))
    assert saved.pop("global_step") == finished.summary["global_step"]
    assert_saved(saved, params, {"": w} | scheme.state(), largest)
    assert not saved, (
        f"the checkpoint also holds {sorted(saved)}: {type(scheme).__name__}.state() in "
        "Many-Workers/schemes.py must name it"
    )


def assert_saved(saved: dict, params: list[str], state: dict, largest: dict) -> None:
    """Removes from `saved`, a checkpoint, what `state` names, after comparing it. There, bits may
    be packed, eight to a byte."""
    sizes = {name: saved[name].size for name in params}
    for slot, expected in state.items():
        each = [f"{name}/{slot}" if slot else name for name in params]
        names = each if np.ndim(expected) else [slot]
        missing = set(names) - set(saved)
        assert not missing, f"no {sorted(missing)} in the checkpoint: it has {sorted(saved)}"
        values = [saved.pop(name).ravel() for name in names]
        if np.asarray(expected).dtype == bool:
            values = [np.unpackbits(v, count=sizes[name]) for v, name in zip(values, params)]
        far = np.abs(np.concatenate(values) - np.asarray(expected, float)).max()
        assert far <= EXACT * largest.get(slot, np.abs(expected).max()), slot or "parameters"


def simulated(finished) -> np.ndarray:
    """The global parameters if Many-Workers does the same: in the same order, unless the workers
    wait for each other."""
    name = formulas.of(finished.summary["scheme"]).scheme
    told = finished.summary["flags"]
    own = {flag: told[flag] for flag in schemes.SCHEMES[name].defaults}
    options = simulate.options(scheme=name, workers=told["workers"], model="linear", batch_size=0,
                               steps=told["steps"], **own)  # fmt: skip
    events = [finished.events(k) for k in range(told["workers"])]

    def cluster_of(*arguments):
        waits = arguments[1].worker == "synchronous"
        return simulate.Cluster(*arguments) if waits else Recorded(events, *arguments)

    cluster, _ = simulate.simulate(options, make_cluster=cluster_of)
    assert cluster.updates == told["steps"]
    return cluster.w
