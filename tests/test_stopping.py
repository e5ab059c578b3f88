"""Any worker can end the whole run: a hook that requests a stop, or data that ends."""

import itertools
import re

import pytest
from conftest import ROOT, copy_example
from machine import seconds

# A hook of one worker, after its 40th step.
STOP = """
class Stop(tf.train.SessionRunHook):
    steps = 0

    def after_run(self, run_context, run_values):
        self.steps += 1
        if task.index == {worker} and self.steps == 40:
            run_context.request_stop()


# 6. """
SCHEMES = ["HogWild", "AEASGD", "Stale-Synchronous-Parallel", "Synchronous-SGD", "Local-SGD"]
STEPS = 10**6  # the run would not end by itself


def changed(example: str, to, *changes: tuple[str, str]):
    source = (ROOT / example / "worker.py").read_text()
    for old, new in changes:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    return copy_example(example, to, worker=source)


def least(finished) -> int:
    """The updates at the end of one worker's 40th step. In rounds, the 40th may still wait for the
    other worker's push."""
    return 39 if (finished.results / "updates.jsonl").exists() else 40


def assert_complete(finished, workers: int = 2) -> None:
    """Every worker has ended, and all results are there and belong together."""
    summary = finished.summary
    assert [task["exit_code"] for task in summary["tasks"]] == [0] * (workers + 1)
    assert least(finished) <= summary["global_step"] < STEPS
    assert summary["test_accuracy"] > 0.3
    assert len(finished.parameters) == 4
    saved = {path.stem for path in (finished.results / "checkpoints").glob("model.ckpt-*.index")}
    assert f"model.ckpt-{summary['global_step']}" in saved
    for k in range(workers):
        assert finished.events(k)[-1]["global_step"] <= summary["global_step"] + 1


FAST = ("Synchronous-SGD", 1)  # worker 0 waits for worker 1


@pytest.mark.parametrize(
    ("example", "worker"),
    [
        pytest.param(*case, marks=[] if case == FAST else pytest.mark.slow("the same again"))
        for case in itertools.product(SCHEMES, (0, 1))
    ],
)
def test_a_hook_of_any_worker_stops_the_run(run, tmp_path, example, worker):
    root = changed(
        example,
        tmp_path,
        ("\n# 6. ", STOP.format(worker=worker)),
        (") as sess:", ", hooks=[Stop()]) as sess:"),
    )
    late = "--delay", f"{1 - worker}:0.01"  # the other one
    assert_complete(run(example, "--steps", STEPS, *late, root=root))


BATCHES = "    next_batch = data.batches(flags, worker=task.index, workers=flags.workers)\n"
# Worker 1's data set has 40 batches, the other's does not end.
ENDING = """    import numpy as np

    x, labels = data.load(flags, "train", task.index, flags.workers)
    epochs = tf.data.Dataset.from_tensor_slices((np.float32(x).reshape(len(x), -1), labels))
    epochs = epochs.repeat().batch(32, drop_remainder=True)
    next_batch = data.pipeline(epochs.take(40 if task.index else 10**9), flags, task.index)
"""


@pytest.mark.parametrize(
    ("example", "more"),
    [
        ("HogWild", []),
        ("HogWild", ["--steps_per_execution", 16]),
        ("Synchronous-SGD", []),
        pytest.param("AEASGD", ["--window", 1], marks=pytest.mark.slow("the same again")),
        pytest.param("Local-SGD", ["--window", 1], marks=pytest.mark.slow("the same again")),
    ],
)
def test_data_that_ends_ends_the_run_with_a_sentence(run, tmp_path, example, more):
    root = changed(example, tmp_path, (BATCHES, ENDING))
    late = "--delay", "0:0.01"  # the worker whose data does not end
    finished = run(example, "--steps", STEPS, *late, *more, root=root)
    assert_complete(finished)
    said = re.findall(r"^\[worker (\d)\] its data set has ended, .*$", finished.output, re.M)
    assert said == ["1"]
    (at,) = re.findall(r"the run ends at update (\d+) of 1000000: .*repeat", finished.output)
    assert least(finished) <= int(at) <= finished.summary["global_step"]
    # Inside a call, the error may come while the last push is still on its way.
    assert len(finished.events(1)) in ([39, 40] if more[:1] == ["--steps_per_execution"] else [40])


@pytest.mark.slow("one worker sleeps")
@pytest.mark.parametrize(("late", "waits", "whom"), [
    (1, 0, r"worker 1 at [\w.:]+ to end its loop"),
    (0, 1, r"worker 0 at [\w.:]+ to write the results, once all workers have ended their loops,"),
])  # fmt: skip
def test_who_has_made_the_last_update_says_for_whom_it_waits(run, late, waits, whom):
    """It looks every five seconds."""
    finished = run("HogWild", "--steps", 20, "--delay", f"{late}:{seconds(8)}")
    log = (finished.results / "logs" / f"worker-{waits}.log").read_text()
    assert re.search(f"^waiting for {whom} ...$", log, re.M)
