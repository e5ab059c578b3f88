"""DiLoCo: its special cases, SlowMo, what is kept from round to round, and what a kill loses.

`test_replay.py` compares its default with the formula. Here, too: full batches and `linear`.
"""

import numpy as np
import pytest
from conftest import ROOT, copy_example
from machine import seconds
from replays import EXACT, assert_replayed, distance, flat, replayed, rounds, scheme_of

from common.training import checkpoints

pytestmark = pytest.mark.usefixtures("two_cores")
# Not their defaults, so that a flag that is ignored shows.
OTHER = ["--inner_beta1", 0.8, "--inner_beta2", 0.95, "--weight_decay", 0.3, "--outer_rate", 0.5,
         "--outer_momentum", 0.6]  # fmt: skip
LOOP = "        sess.run(step)"
DEATH = """        import os
        made = globals().get("made", 0) + 1
        if task.index == 1 and made == 5 and os.environ["TASK_RESTARTS"] == "0":
            os.kill(os.getpid(), 9)
        sess.run(step)"""


@pytest.fixture
def trained(run):
    """A complete run on full batches with `linear`."""

    def _trained(*flags, example="DiLoCo", steps=12, eta=0.01):
        # Where a gradient is nearly 0, m^ / sqrt(v^) would be that of its rounding.
        fixed = ["--model", "linear", "--batch_size", 0, "--window", 5, "--steps", steps,
                 *(("--inner_epsilon", 1e-3) if example == "DiLoCo" else ())]  # fmt: skip
        return run(example, *fixed, "--learning_rate", eta, *flags)

    return _trained


def scheme(finished):
    return scheme_of("DiLoCo", finished.summary["flags"])


def test_with_sgd_and_without_momentum_it_is_local_sgd(trained):
    plain = ["--inner", "sgd", "--outer_rate", 1, "--outer_momentum", 0]
    this = trained(*plain, eta=0.3)
    parent = trained(example="Local-SGD", eta=0.3)
    assert distance(flat(this), flat(parent)) < EXACT


@pytest.mark.parametrize("inner", ["sgd", pytest.param("adamw", marks=pytest.mark.slow("again"))])
def test_outer_momentum_is_slowmo(trained, inner):
    """Its u, which counts in steps of eta, is in the checkpoint. Nesterov gives something else."""
    eta = 0.3 if inner == "sgd" else 0.01
    finished = trained("--inner", inner, "--outer", "momentum", "--outer_rate", 0.5, eta=eta)
    assert_replayed(finished, scheme(finished))
    nesterov = scheme_of("DiLoCo", finished.summary["flags"] | {"outer": "nesterov"})
    assert distance(flat(finished), replayed(finished, nesterov)) > 100 * EXACT


def test_moments_and_their_count_are_kept_from_round_to_round(trained):
    """A formula that forgets one of them after each round is far away."""
    finished = trained(*OTHER)
    assert_replayed(finished, scheme(finished))
    for name in ("m", "v", "i"):
        forgetful = scheme(finished)
        usual = forgetful.contribution

        def contribution(k, pulled, forgetful=forgetful, usual=usual, name=name):
            each = getattr(forgetful, name)
            each[k] = 0 * each[k]
            return usual(k, pulled)

        forgetful.contribution = contribution
        assert distance(flat(finished), replayed(finished, forgetful)) > 100 * EXACT, name


@pytest.mark.parametrize("outer", ["nesterov", "momentum"])
def test_backup_workers_are_a_quorum(trained, outer):
    """An update has the n - b first pushes, and divides by n - b."""
    late = seconds(0.2)
    flags = ["--workers", 3, "--backup_workers", 1, "--outer", outer]
    finished = trained(*flags, "--delay", f"2:{late}", steps=10)
    took = rounds(finished)
    assert took == [[0, 1]] * 10
    assert_replayed(finished, scheme(finished))
    all_three = scheme(finished)
    all_three.update_round = lambda w, pushes: type(all_three).update_round(
        all_three, w, pushes | {2: 0 * w}
    )
    assert distance(flat(finished), replayed(finished, all_three)) > 100 * EXACT


def test_a_dropped_round_stays_in_the_moments(trained):
    """Three equal workers, one of them spare: now this one is late, now that."""
    equal = ",".join(f"{k}:{seconds(0.005)}" for k in range(3))

    def shows(finished) -> bool:
        """Whether a worker was dropped early, and contributed later. It is chance who is late."""
        took = rounds(finished)
        for k in range(3):
            dropped = [e["pulled_at"] for e in finished.events(k) if k not in took[e["pulled_at"]]]
            early = [number for number in dropped if number < 10]
            if early and any(k in those for those in took[early[0] + 1 : 20]):
                return True
        return False

    for _ in range(6):
        finished = trained("--workers", 3, "--backup_workers", 1, "--delay", equal, steps=30)
        took = rounds(finished)
        assert all(len(those) == 2 for those in took)
        if shows(finished):
            break
    assert shows(finished), "the same worker was late in six runs"

    def end(keeps: bool) -> np.ndarray:
        """The replay, with the windows that were dropped or without them."""
        one, made = scheme(finished), [np.zeros(650)]
        windows = [[event["pulled_at"] for event in finished.events(k)] for k in range(3)]
        for number, those in enumerate(took):
            pushes = {}
            for k in those:
                while windows[k][0] < number:
                    pulled = windows[k].pop(0)
                    if keeps:
                        one.contribution(k, made[pulled])
                pushes[k] = one.contribution(k, made[windows[k].pop(0)])
            made.append(one.update_round(made[-1], pushes))
        return made[-1]

    assert distance(flat(finished), end(keeps=True)) < EXACT
    assert distance(flat(finished), end(keeps=False)) > 100 * EXACT


def test_a_run_that_continues_has_its_momentum_and_new_moments(trained, tmp_path):
    """u is in the checkpoint. A worker's m, v and i are not: they begin again at 0, as they do if a
    worker is killed or a ps is lost."""
    folder = ["--checkpoint_dir", tmp_path / "saved"]
    first = trained(*folder, steps=6)
    second = trained(*folder, steps=12)
    assert "continues at update 6 of 12" in second.output

    def both(forgets: str) -> np.ndarray:
        one, w = scheme(first), np.zeros(650)
        for number in range(12):
            if number == 6:
                w, u = w.astype(np.float32), one.u.astype(np.float32)
                one = one if forgets == "nothing" else scheme(first)
                one.u = 0 * u if forgets == "u" else u
            pushes = {k: one.contribution(k, w) for k in (0, 1)}
            w = one.update_round(w, pushes)
        saved = checkpoints.values(checkpoints.newest(str(tmp_path / "saved")))
        u = np.concatenate([saved["weights_0/u"].ravel(), saved["biases_0/u"].ravel()])
        if forgets == "moments":
            assert np.abs(u - one.u).max() < EXACT * np.abs(one.u).max()
        return w

    assert distance(flat(second), both("moments")) < EXACT
    assert distance(flat(second), both("nothing")) > 100 * EXACT
    assert distance(flat(second), both("u")) > 100 * EXACT


@pytest.mark.slow("a task is restarted")
def test_a_killed_worker_loses_its_moments(run, tmp_path):
    """It dies before its fifth round, and makes it with new moments. The others keep theirs, and
    the ps its u."""
    source = (ROOT / "DiLoCo" / "worker.py").read_text()
    assert source.count(LOOP) == 1
    root = copy_example("DiLoCo", tmp_path / "mine", worker=source.replace(LOOP, DEATH))
    finished = run("DiLoCo", "--model", "linear", "--batch_size", 0, "--window", 5, "--steps", 8,
                   "--inner_epsilon", 1e-3, "--learning_rate", 0.01, root=root)  # fmt: skip
    assert [task["restarts"] for task in finished.summary["tasks"]] == [0, 0, 1]

    def ends(lost: tuple[int, ...]) -> np.ndarray:
        one, w = scheme(finished), np.zeros(650)
        for number in range(8):
            if number == 4:
                for k in lost:
                    one.m[k], one.v[k], one.i[k] = 0 * one.m[k], 0 * one.v[k], 0
            w = one.update_round(w, {k: one.contribution(k, w) for k in (0, 1)})
        return w

    assert distance(flat(finished), ends((1,))) < EXACT
    for other in ((), (0,), (0, 1)):
        assert distance(flat(finished), ends(other)) > 100 * EXACT
