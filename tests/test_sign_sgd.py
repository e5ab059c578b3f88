"""Sign-SGD: its bits, its vote, and the workers' own copies of w~, also after failures.

`test_replay.py` compares a run of four workers, with ties, with the formula, and its bytes.
"""

import json

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from conftest import ROOT, copy_example, kill_and_see_it_back, reach, wait_for_checkpoint
from machine import seconds
from replays import in_rounds, rounds, scheme_of

from common.launch import network
from common.record import trace

PUSH = "    # m_k <- beta m_k"
ME = "session.Replica(step, loss, pull, push, token)"
# In every step, w must be the w~ of the token, bit for bit.
CHECK = """    there = copies.pull(params, global_step, after=token.number).w
    same = [tf.equal(tf.bitcast(p, tf.int32), tf.bitcast(q, tf.int32)) for p, q in zip(w, there)]
    same = tf.reduce_all([tf.reduce_all(each) for each in same]) | tf.not_equal(count, token.number)
    with tf.control_dependencies([tf.debugging.Assert(same, ["w is not w~ at", token.number])]):
        w = [tf.identity(p) for p in w]

"""
FRESH = "tf.reduce_all(tf.equal(m[-1], (1 - beta) * grads[-1]))"  # m was 0
MORE = f"{{'whole_pulls': [~follows], 'fresh': [{FRESH}]}}"


def checked(to, changed: tuple[str, str] = ("", "")):
    """A copy of the example that checks w in every step, and counts the pulls of all of w~."""
    source = (ROOT / "Sign-SGD" / "worker.py").read_text()
    assert source.count(PUSH) == source.count(ME) == 1
    source = source.replace(PUSH, CHECK + PUSH).replace(ME, f"{ME[:-1]}, more={MORE})")
    assert changed[0] in source
    return copy_example("Sign-SGD", to, worker=source.replace(*changed))


def counted(what: str, where, workers: int = 2) -> list[int]:
    """For each worker, in how many steps it pulled all of w~, or its momentum was 0."""
    return [sum(event[what] for event in mine) for mine in trace.read_events(where, workers)]


@pytest.fixture
def bits(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "Sign-SGD")
    import bits

    return bits


@pytest.mark.parametrize("shape", [[1], [8], [3, 7], [64, 10]])
def test_signs_are_packed_as_numpy_packs_them(bits, shape):
    values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    values.flat[0] = 0
    with tf.Graph().as_default(), tf.Session() as session:
        packed = bits.pack(tf.constant(values))
        signs = bits.unpack(tf.stack([packed, ~packed]), tf.TensorShape(shape))
        packed, signs = session.run([packed, signs])
    np.testing.assert_array_equal(packed, np.packbits(values >= 0))
    assert len(packed) == bits.size(tf.TensorShape(shape))
    expected = np.where(values >= 0, 1, -1)
    np.testing.assert_array_equal(signs, [expected, -expected])


@pytest.mark.parametrize(
    "signs, vote",
    [
        ([[1, 1, -1, -1], [1, -1, 1, -1]], [1, 1, -1, -1]),
        ([[1, -1, -1, 1], [1, -1, 1, -1], [-1, 1, 1, -1], [-1, 1, -1, -1]], [1, -1, -1, -1]),
        ([[1, 1, -1], [-1, -1, 1], [-1, 1, 1]], [-1, 1, 1]),
    ],
)
def test_in_a_tie_the_first_worker_decides(signs, vote):
    """In NumPy, by hand; real runs of two and four workers are replayed with that."""
    flags = {"learning_rate": 0.5, "sign_momentum": 0.9, "workers": len(signs)}
    w = scheme_of("Sign-SGD", flags).update_round(
        np.zeros(len(vote)), dict(enumerate(np.array(signs, float)))
    )
    np.testing.assert_array_equal(w, -0.5 * np.array(vote))


def test_two_workers_follow_the_first_in_a_tie(run):
    """By the formula; with worker 1's signs in a tie the result is another."""
    finished = run("Sign-SGD", "--model", "linear", "--batch_size", 0, "--learning_rate", 0.1,
                   "--steps", 20)  # fmt: skip
    scheme = scheme_of("Sign-SGD", finished.summary["flags"])
    measured = np.concatenate([array.ravel() for array in finished.parameters])
    expected = in_rounds(scheme, rounds(finished))[-1]
    np.testing.assert_allclose(measured, expected, atol=1e-5)
    last = scheme_of("Sign-SGD", finished.summary["flags"])
    first_decides = last.update_round
    last.update_round = lambda w, pushes: first_decides(w, {-k: g for k, g in pushes.items()})
    assert np.abs(in_rounds(last, rounds(finished))[-1] - measured).max() > 0.1


def test_a_workers_copy_is_w_bit_for_bit(run, tmp_path):
    """At each token, from the first to the last. All of w~ travels once, at the start."""
    root = checked(tmp_path / "mine")
    finished = run("Sign-SGD", "--steps", 100, "--workers", 3, "--ps", 2, root=root)
    assert finished.summary["global_step"] == 100
    assert counted("whole_pulls", finished.results, 3) == [1, 1, 1]


@pytest.mark.slow("a changed scheme")
def test_another_rate_in_the_copy_is_found(run, tmp_path):
    root = checked(tmp_path / "mine", ("p - flags.learning_rate * s", "p - 0.0010001 * s"))
    finished = run("Sign-SGD", "--steps", 20, root=root, ok=False)
    assert finished.code != 0
    logs = [(finished.results / "logs" / f"worker-{k}.log").read_text() for k in (0, 1)]
    assert any("w is not w~ at" in log for log in logs)


@pytest.mark.slow("tasks are killed")
@pytest.mark.parametrize("job, index, pulls", [
    ("worker", 1, [1, 2]), ("worker", 0, [2, 1]), ("ps", 0, [2, 2]),
])  # fmt: skip
def test_after_a_kill_all_of_it_is_pulled(start, tmp_path, job, index, pulls):
    """And w is w~ again. Momentum that is lost starts at 0."""
    root = checked(tmp_path / "mine")
    late = seconds(0.01)
    process, where = start("Sign-SGD", "--steps", 400, "--delay", f"0:{late},1:{late}", root=root)
    reach(where, 60)
    wait_for_checkpoint(where, 20)
    kill_and_see_it_back(where, job, index)
    output, _ = process.communicate(timeout=seconds(120))
    assert process.returncode == 0, output
    assert json.loads((where / "summary.json").read_text())["global_step"] == 400
    assert counted("fresh", where) == pulls
    # One that meets the update of this worker's earlier push does not count: then there is another.
    found = counted("whole_pulls", where)
    assert all(pulled in (once, once + 1) for pulled, once in zip(found, pulls)), found


@pytest.mark.slow("two runs")
def test_a_run_continues_from_its_checkpoint(run, tmp_path):
    root = checked(tmp_path / "mine")
    for steps, whole in ((40, [1, 1]), (80, [1, 1])):
        finished = run("Sign-SGD", "--steps", steps, "--checkpoint_dir", tmp_path / "c", root=root)
        assert finished.summary["global_step"] == steps
        assert counted("whole_pulls", finished.results) == whole
    assert "continues at update 40 of 80" in finished.output


@pytest.mark.skipif(bool(network.can_be_private()), reason=network.can_be_private())
@pytest.mark.slow("bytes on the network")
def test_the_bytes_of_a_step(run):
    """101,770 parameters, two bits each, and what TensorFlow adds: with evaluations, which pull
    all of w~, less than a tenth of what HogWild's step needs."""
    finished = run("Sign-SGD", "--data", "synthetic", "--steps", 1000, patience=300)
    needed = 2 * sum(-(-size // 8) for size in (784 * 128, 128, 128 * 10, 10))
    assert needed == 25_444
    assert needed < finished.summary["bytes_per_step"] < 814_160 / 10
