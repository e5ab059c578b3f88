"""`--compute_ms`: a mini-batch takes at least that long, asleep, and nothing else changes."""

import argparse
import json
import time

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from conftest import ROOT
from machine import seconds

from common.graph import accelerator, clock
from common.pictures import curves

tf.disable_eager_execution()

MS = 30
FLAGS = ["--model", "linear", "--batch_size", 8, "--compute_ms", MS]


def slept(milliseconds, steps=1):
    """The wall-clock and processor seconds of so many steps in a loop, and what they gave."""

    def step(t, value):
        began, (batch,) = accelerator.start([value], [tf.ones([3])])
        value = value + batch
        return t + 1, accelerator.at_least(milliseconds, began, [value])[0]

    with tf.Graph().as_default(), tf.Session() as session:
        found = tf.while_loop(lambda t, _: t < steps, step, [0, tf.zeros([3])])[1]
        session.run(found)
        began, used = time.monotonic(), time.process_time()
        value = session.run(found)
        return time.monotonic() - began, time.process_time() - used, value


def test_it_sleeps_once_in_each_step_and_uses_no_processor():
    for _ in range(10):  # a busy machine may take longer
        took, used, value = slept(milliseconds=200, steps=4)
        assert took >= 0.8 and (value == 4).all()
        if took < 1.5 and used < 0.2:  # twice would be 1.6 s
            return
    pytest.fail(f"it took {took:.1f} s, {used:.1f} s of the processor")


def test_what_is_computed_counts():
    """It sleeps only for what is left of the time."""
    with tf.Graph().as_default(), tf.Session() as session:
        began = clock.now([])
        with tf.control_dependencies([began]):
            late = tf.numpy_function(lambda: (time.sleep(0.3), 7.0)[1], [], tf.float64)
        passed = [accelerator.at_least(milliseconds, began, late) for milliseconds in (200, 600)]
        ends = [clock.now([value]) - began for value in passed]
        for _ in range(10):
            first, second = session.run(ends[0]), session.run(ends[1])
            assert first >= 0.3 and second >= 0.6
            if first < 0.45 and second < 0.85:  # 0.5 and 0.9 if all of the time were slept
                break
        else:
            pytest.fail(f"{first:.2f} s and {second:.2f} s")
        assert session.run(passed) == [7, 7]


def test_rows_of_a_table_and_absent_gradients_pass():
    with tf.Graph().as_default(), tf.Session() as session:
        rows = tf.IndexedSlices(tf.constant([[1.0, 2.0]]), tf.constant([3]), tf.constant([5, 2]))
        found = accelerator.at_least(1, clock.now([]), (tf.constant(4.0), [rows, tf.ones(2)]))
        loss, (sparse, ones) = session.run(found)
    assert loss == 4 and (ones == 1).all()
    assert sparse.indices == 3 and (sparse.values == [[1, 2]]).all()


def examples():
    """Those whose main script computes gradients with models.py."""
    mains = (path for name in ("chief", "worker", "train") for path in ROOT.glob(f"*/{name}.py"))
    return sorted(path.parent.name for path in mains if "models.gradients(" in path.read_text())


OTHERS = [  # scripts that a flag chooses
    ("HogWild", "--threads", 2),
    ("In-Graph-Replication", "--mode", "threads"),
    ("Multiple-GPUs-Single-Machine", "--mode", "towers"),
    ("Multiple-GPUs-Single-Machine", "--mode", "synchronous"),
    ("TensorFlow-2", "--strategy", "multi_worker_mirrored"),
    ("TensorFlow-2", "--strategy", "mirrored"),
    ("TensorFlow-2", "--strategy", "central_storage"),
]
MORE = {"One-Network-per-Device": ["--rates", 0.1, "--widths", 8]}
QUICK = ("HogWild", "AGN")  # the others are slow tests


@pytest.mark.parametrize("call", [
    pytest.param(call, marks=[] if call[0] in QUICK and not call[1:] else
                 pytest.mark.slow("a run of each script"), id=" ".join(map(str, call)))
    for call in [*[(example,) for example in examples()], *OTHERS]
])  # fmt: skip
def test_every_mini_batch_takes_that_long_and_the_timeline_counts_it(run, call):
    finished = run(*call, *FLAGS, "--steps", 6, *MORE.get(call[0], []))
    events = [event for path in finished.results.glob("events-worker-*.jsonl")
              for event in map(json.loads, path.read_text().splitlines())]  # fmt: skip
    each = finished.summary["flags"].get("window", 1)
    assert events
    if call[0] in ("AEASGD", "AEAMSGD"):  # the first gradient does not wait for the pull
        each -= 1
    assert min(event["compute"] for event in events) >= each * MS / 1000
    assert f"a mini-batch takes at least {MS} ms, asleep" in finished.output.splitlines()[0]


def test_nothing_else_changes(run):
    """One process gets the same parameters, to the last bit."""
    flags = ["--steps", 20, "--data", "synthetic"]
    runs = [run("Non-Distributed-Setup", *flags, *more) for more in ([], ["--compute_ms", 5])]
    for own, other in zip(*[each.parameters for each in runs], strict=True):
        assert np.array_equal(own, other)


def test_workers_sleep_at_the_same_time(run):
    """Four of them make four times as many steps as one process could."""
    finished = run("HogWild", "--workers", 4, "--steps", 40, "--compute_ms", seconds(500))
    assert finished.summary["seconds"] < 40 * seconds(0.5) / 2


def test_the_title_of_the_picture_says_it_on_a_line_of_its_own():
    """The first line is as long as the picture is wide."""
    summary = {"scheme": "HogWild", "workers": 2, "global_step": 60, "flags": {"compute_ms": 20.0},
               "test_accuracy": 0.5}  # fmt: skip
    own = argparse.Namespace(tested=lambda _: "50.0% test accuracy")
    first, second = curves.title(summary, own).split("\n")
    assert second == "a mini-batch takes at least 20 ms, asleep"
    assert curves.title(summary | {"flags": {}}, own) == first
