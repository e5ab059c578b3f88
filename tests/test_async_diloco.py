"""Async-DiLoCo: its period, its lock, its special cases, and windows by measured speed.

`test_replay.py` compares its default with the formula. Here, too: full batches and `linear`.
"""

import itertools
import re

import numpy as np
import pytest
from conftest import copy_example
from machine import seconds
from replays import EXACT, SIZE, assert_replayed, distance, flat, replayed, scheme_of
from test_diloco import OTHER
from test_transfers import log_of_chief, probed

from common.record import trace

pytestmark = pytest.mark.usefixtures("two_cores")


@pytest.fixture
def trained(run):
    """A complete run on full batches with `linear`."""

    def _trained(*flags, example="Async-DiLoCo", steps=24, **more):
        # Where a gradient is nearly 0, m^ / sqrt(v^) would be that of its rounding.
        fixed = ["--model", "linear", "--batch_size", 0, "--window", 5, "--learning_rate", 0.01,
                 "--inner_epsilon", 1e-3, "--steps", steps]  # fmt: skip
        return run(example, *fixed, *flags, **more)

    return _trained


def scheme(finished, **other):
    return scheme_of("Async-DiLoCo", finished.summary["flags"] | other)


@pytest.mark.parametrize("period", [1, 5])
def test_u_changes_at_every_nth_update(trained, period):
    """As the formula says, whatever the number of workers; B and u are in the checkpoint. After 24
    updates with N = 5, B still has four moves. Another N gives something else."""
    late = [f"{k}:{seconds(0.01)}" for k in range(3)]
    finished = trained("--workers", 3, "--delay_period", period, "--delay", ",".join(late), *OTHER)
    this = scheme(finished)
    assert_replayed(finished, this)
    assert this.B.any() == (period == 5) and this.u.any()
    assert finished.summary["staleness"]["max"] > 0
    other = scheme(finished, delay_period=3)
    assert distance(flat(finished), replayed(finished, other)) > 100 * EXACT


def test_updates_of_many_workers_do_not_mix(trained):
    """Four workers push as fast as they can, with one local step and no delay. Every update finds
    the u, B and w~ that the one before has left."""
    finished = trained("--workers", 4, "--window", 1, "--inner", "sgd", "--learning_rate", 0.1,
                       "--delay_period", 3, steps=400)  # fmt: skip
    assert finished.summary["staleness"]["max"] > 1
    assert_replayed(finished, scheme(finished))


@pytest.mark.slow("two runs of changed copies")
def test_without_the_lock_updates_mix(trained, tmp_path):
    """On a ps with four threads. With the lock, only pulls overlap with updates."""
    far = {}
    for kind in ("with", "without"):
        root = probed("Async-DiLoCo", tmp_path / kind)
        cluster = root / "common" / "cluster.py"
        threads = "config.inter_op_parallelism_threads = max(1, cores() // tasks_here)"
        assert threads in cluster.read_text()
        more = threads.replace("max(1, cores() // tasks_here)", "4")
        cluster.write_text(cluster.read_text().replace(threads, more))
        if kind == "without":
            script = root / "Async-DiLoCo" / "worker.py"
            text = script.read_text()
            for part, instead in (
                ("with tf.control_dependencies([lock]), session", "with session"),
                ("tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)", "tf.no_op()"),
            ):
                assert text.count(part) == 1
                text = text.replace(part, instead)
            script.write_text(text)
        finished = trained("--workers", 4, "--window", 1, "--inner", "sgd", "--learning_rate", 0.1,
                           "--delay_period", 3, steps=1000, root=root)  # fmt: skip
        far[kind] = distance(flat(finished), replayed(finished, scheme(finished)))
    assert far["without"] > 5 * far["with"], far


def test_one_worker_that_delays_nothing_is_diloco(trained):
    this = trained("--workers", 1, "--delay_period", 1)
    parent = trained("--workers", 1, example="DiLoCo")
    assert distance(flat(this), flat(parent)) < EXACT


def windows(finished, k: int) -> list[int]:
    """How many steps each push of worker k contains."""
    counts = [event["local_step"] for event in finished.events(k)]
    return [after - before for before, after in itertools.pairwise([0, *counts])]


def test_a_slow_worker_makes_fewer_steps(trained):
    """Each first window has T steps. Then a worker whose step takes three times as long makes about
    T / 3. The events, the summary and the formula agree on how many there were."""
    fast, slow, most = seconds(0.03), seconds(0.09), 12
    finished = trained("--window", most, "--dynamic_steps", "--delay", f"0:{fast},1:{slow}")
    every = [windows(finished, k) for k in (0, 1)]
    assert [each[0] for each in every] == [most, most]
    assert max(map(max, every)) == most
    assert most / 3 - 2 <= np.median(every[1][1:]) <= most / 3 + 1
    assert np.median(every[0][1:]) == most
    for k, each in enumerate(every):
        (task,) = [t for t in finished.summary["tasks"] if (t["job"], t["index"]) == ("worker", k)]
        shard = [719, 718][k]
        assert task["local_steps"] == sum(each)
        assert task["examples"] == sum(each) * shard
        assert [e["examples"] for e in finished.events(k)] == [t * shard for t in each]

    this, left = scheme(finished), [iter(each) for each in every]
    usual = this.contribution

    def contribution(k, pulled):
        this.window = next(left[k])
        return usual(k, pulled)

    this.contribution = contribution
    assert_replayed(finished, this)


def test_windows_are_rounded_down(trained, tmp_path):
    """Worker 0 needs 1 s for a step. Worker 1 needs 3.2 s: 12 / 3.2 = 3.75. Once it needs 50 s, it
    still makes one step."""
    root = copy_example("Async-DiLoCo", tmp_path / "mine")
    script = root / "Async-DiLoCo" / "worker.py"
    text = script.read_text()
    took = "took = (push.computed_at - pull.arrived_at) / tf.cast(t, tf.float64)"
    assert text.count(took) == 1
    said = "took = tf.where(pull.count < 12, *[tf.constant(a, tf.float64) for a in %s])"
    script.write_text(text.replace(took, said % "((1, 1), (3.2, 50))[task.index]"))
    late = f"0:{seconds(0.01)},1:{seconds(0.01)}"
    finished = trained("--window", 12, "--dynamic_steps", "--delay", late, root=root, steps=60)
    assert windows(finished, 0) == [12] * len(finished.events(0))
    first, *others = windows(finished, 1)
    threes = others.count(3)
    assert first == 12 and others == [3] * threes + [1] * (len(others) - threes)
    assert 0 < threes < len(others)


def test_a_longer_window_sends_no_more(trained, tmp_path):
    """With measured speeds, too: a loop whose length is on the ps would ask there at each step."""
    sent = []
    for window in (3, 12):
        root = probed("Async-DiLoCo", tmp_path / str(window))
        finished = trained("--window", window, "--dynamic_steps", "--workers", 1, root=root)
        assert windows(finished, 0) == [window] * 24
        sent.append(len(re.findall(r"^step 2 .* from ", log_of_chief(finished), re.M)))
    assert sent[0] == sent[1] > 0


def test_a_continued_run_counts_on(trained, tmp_path):
    """The 10th update changes u, not the fifth after the restart. B is in the checkpoint."""
    flags = ["--workers", 1, "--delay_period", 5, "--checkpoint_dir", tmp_path / "saved"]
    first, second = (trained(*flags, steps=steps) for steps in (7, 12))
    assert "continues at update 7 of 12" in second.output
    ends = {}
    for shift in (0, 3):
        one, w = scheme(first), np.zeros(SIZE)
        for number in range(12):
            if number == 7:  # the moments begin again, and w~, u, B are read as float32
                B, u, w = one.B.astype(np.float32), one.u.astype(np.float32), w.astype(np.float32)
                one = scheme(first)
                one.B, one.u, one.number = B, u, 7 + shift
            w = one.update(w, one.contribution(0, w), 0, w)
        ends[shift] = w
    assert distance(flat(second), ends[0]) < EXACT
    assert distance(flat(second), ends[3]) > 100 * EXACT


def test_a_worker_alone_has_all_steps(trained):
    finished = trained("--workers", 1, "--dynamic_steps", steps=6)
    assert windows(finished, 0) == [5] * 6
    assert finished.summary["examples"] == 6 * 5 * 1437


def test_a_restarted_worker_counts_its_batches_from_0():
    """The summary adds up what its events tell, of windows of different lengths."""
    events = [{"local_step": n} for n in (20, 27, 30, 20, 25)]
    assert trace.batches(events) == 55
    assert trace.batches([]) == 0


def test_the_momentum_of_the_ps_is_that_of_the_mean():
    """If all n workers push the same d, n delayed updates end with DiLoCo's u. w~ has moved by
    rate (beta u + d), as DiLoCo's."""
    flags = {"workers": 4, "window": 1, "learning_rate": 0.1, "inner": "sgd", "outer_rate": 0.7,
             "outer_momentum": 0.9, "delay_period": 4, "outer": "nesterov"}  # fmt: skip
    this, parent = (scheme_of(name, flags) for name in ("Async-DiLoCo", "DiLoCo"))
    w = v = np.zeros(SIZE)
    for d in np.random.default_rng(0).normal(size=(3, SIZE)):
        for _ in range(4):
            w = this.update(w, d, 0, None)
        v = parent.update_round(v, dict.fromkeys(range(4), d))
        np.testing.assert_allclose(w, v, atol=1e-12)
        np.testing.assert_allclose(this.u, parent.u, atol=1e-12)
