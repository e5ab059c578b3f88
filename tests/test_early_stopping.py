"""Early stopping: what a run keeps are exactly the parameters that its best evaluation measured."""

import argparse
import json
import shutil
import sys

import matplotlib.pyplot as plt
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from test_stopping import changed

from common.pictures import plots
from common.record import metric, trace
from common.training import best, checkpoints, evaluation

FLAGS = '"target": None, "patience": 4,\n            "evaluate_every": 100, "steps": 20000'
# A metric of the parameters alone, which is best in the middle of the training: how far the length
# of the first weights is from 18. Momentum gives the parameters slots.
EVALUATE = """
import numpy as np


def evaluate(w, x, labels):
    losses = models.evaluate(flags.model, w, x, labels)["loss"]
    away = tf.abs(tf.norm(tf.cast(w[0], tf.float64)) - 18)
    return {"away": session.Metric(tf.fill(tf.shape(labels), away), lower=True), "loss": losses}


x, labels = data.load(flags, "test")
apart = {"validation": (x[::2], labels[::2]), "test": (x[1::2], labels[1::2])}

# 6. The monitored"""
SGD = "optimizer = tf.train.GradientDescentOptimizer(flags.learning_rate)"
MOMENTUM = "optimizer = tf.train.MomentumOptimizer(flags.learning_rate, 0.5)"


def stopping(example: str, to):
    steps = {"HogWild": '"steps": 2000', "Synchronous-SGD": '"steps": 1000'}[example]
    rounds = ", rounds=rounds" if example == "Synchronous-SGD" else ""
    return changed(
        example,
        to,
        (steps, FLAGS),
        (SGD, MOMENTUM),
        ("\n# 6. The monitored", EVALUATE),
        (f"server, params, [me]{rounds})",
         f"server, params, [me]{rounds}, evaluate=evaluate, **apart)"),
    )  # fmt: skip


def away(array: np.ndarray) -> float:
    return abs(np.linalg.norm(array.astype(np.float64)) - 18)


@pytest.mark.parametrize("example", ["HogWild", "Synchronous-SGD"])
def test_a_run_keeps_exactly_the_parameters_that_were_the_best(run, tmp_path, example):
    root = stopping(example, tmp_path / "mine")
    finished = run(example, "--ps", 2, root=root, curves=True)
    summary = finished.summary
    *during, last = trace.read_evaluations(finished.results)
    assert all("validation_away" in each and "test_away" not in each for each in during)
    values = [each["validation_away"] for each in during]
    found = int(np.argmin(values))
    # It stopped after four evaluations that were not better; there is one more at the end.
    assert found > 0 and len(during) - found - 1 in (4, 5)
    assert summary["global_step"] == during[-1]["global_step"] < 20000
    assert summary["best_step"] == last["best_step"] == during[found]["global_step"]
    assert summary["best_step"] < summary["global_step"] == last["global_step"]
    # parameters.npz has them, and so has the checkpoint, with all that a run needs to continue.
    assert away(finished.parameters[0]) == pytest.approx(values[found], abs=1e-5)
    assert summary["test_away"] == pytest.approx(values[found], abs=1e-5)
    kept = finished.results / "checkpoints" / "best"
    assert [path.stem for path in kept.glob("*.index")] == [f"model.ckpt-{summary['best_step']}"]
    saved = checkpoints.values(str(kept / f"model.ckpt-{summary['best_step']}"))
    with np.load(finished.results / "parameters.npz") as file:
        for name in file.files:
            np.testing.assert_array_equal(file[name], saved[name])
            assert np.any(saved[f"{name}/Momentum"])
    assert saved["global_step"] == summary["best_step"]
    said = f" (of update {summary['best_step']:,}, the best); results in "
    assert said in finished.output.splitlines()[-1]
    assert "no better validation away for 4 evaluations, so the run ends" in finished.output
    # A run continues from a copy, but not in the folder, where it would replace the best one.
    copy = tmp_path / "mine" / "copy"
    shutil.copytree(kept, copy)
    refused = run(example, "--checkpoint_dir", kept, root=root, ok=False)
    assert refused.code == 2 and "holds the best parameters of a run" in refused.output
    more = run(example, "--steps", summary["best_step"] + 10, "--checkpoint_dir", copy, root=root)
    assert f"continues at update {summary['best_step']} of" in more.output
    assert more.summary["global_step"] == summary["best_step"] + 10


def test_a_run_that_continues_knows_the_best_of_the_run_before(run, tmp_path):
    """It has new patience; and it does not compare one metric with another."""
    root, folder = stopping("HogWild", tmp_path / "mine"), tmp_path / "checkpoints"
    first = run("HogWild", "--checkpoint_dir", folder, root=root)
    second = run("HogWild", "--checkpoint_dir", folder, root=root)
    assert second.summary["best_step"] == first.summary["best_step"]
    np.testing.assert_array_equal(second.parameters[0], first.parameters[0])
    assert len(trace.read_evaluations(second.results)) >= 4 + 1
    worker = root / "HogWild" / "worker.py"
    worker.write_text(worker.read_text().replace('{"away": ', '{"far": '))
    other = run("HogWild", "--checkpoint_dir", folder, root=root, ok=False)
    assert other.code == 2 and "best.json compares {'metric': 'away', 'lower': True" in other.output
    for file in folder.glob("model.ckpt-*"):
        file.unlink()
    stale = run("HogWild", "--checkpoint_dir", folder, root=root, ok=False)
    assert stale.code == 2 and "best is of another run, whose checkpoints are gone" in stale.output


def test_a_chief_that_dies_while_it_keeps_the_best_has_the_one_before(looking, monkeypatch):
    look, restored, _ = looking
    look(1, 0.5)
    monkeypatch.setattr(best.Best, "_say", lambda self, note: sys.exit("killed"))
    with pytest.raises(SystemExit):
        look(2, 0.6)
    assert restored() == (1, [1, 0.5])


def test_a_set_without_examples_is_refused(run, tmp_path):
    root = stopping("HogWild", tmp_path / "mine")
    worker = root / "HogWild" / "worker.py"
    worker.write_text(worker.read_text().replace("(x[::2], labels[::2])", "(x[:0], labels[:0])"))
    finished = run("HogWild", root=root, ok=False)
    assert "the validation set of session.training has no examples" in finished.output


def test_patience_counts_evaluations_that_do_not_depend_on_time():
    """A fiftieth of the run apart, however long an evaluation takes."""
    flags = argparse.Namespace(steps=1000, workers=2, link_mbit=None, target_accuracy=None)
    flags.patience = 3
    schedule, found = evaluation.Schedule(flags), []
    for step in range(1001):
        if schedule.is_due(step):
            found.append(step)
            schedule.note(step, took=3600.0)
    assert found == list(range(0, 1001, 20))


@pytest.mark.parametrize(
    ("last", "words"),
    [
        ("evaluate=evaluate, test=apart['test']", "--patience needs session.training(..., valid"),
        ("evaluate=evaluate, tables=[params[0]], **apart", "tables= may be too large for that"),
    ],
)
def test_what_cannot_be_kept_is_refused(run, tmp_path, last, words):
    root = stopping("HogWild", tmp_path / "mine")
    script = root / "HogWild" / "worker.py"
    text = script.read_text()
    assert text.count("evaluate=evaluate, **apart") == 1
    script.write_text(text.replace("evaluate=evaluate, **apart", last))
    finished = run("HogWild", root=root, ok=False)
    assert finished.code == 1 and words in finished.output


WHAT = {"metric": "x", "lower": False, "examples": 9}


@pytest.fixture(params=[False])
def looking(tmp_path, request):
    """A function that shows an evaluation to `Best`: (number, value) -> not better."""
    flags = argparse.Namespace(checkpoint_dir=str(tmp_path))
    with tf.Graph().as_default(), tf.Session() as session:
        tf.train.get_or_create_global_step()
        w = tf.get_variable("w", [2], tf.float64)
        here = tf.get_local_variable("here", [2], tf.float64)
        value = tf.placeholder(tf.float64, [2])
        assign = here.assign(value)
        kept = best.Best(flags, [w], [here], WHAT | {"lower": request.param})
        session.run(tf.local_variables_initializer())

        def look(number, value_of):
            session.run(assign.op, {value: [number, value_of]})
            return kept.look(session, number, value_of)

        def restored():
            session.run(assign.op, {value: [0, 0]})
            return kept.restore(session), session.run(here).tolist()

        yield look, restored, tmp_path


def test_the_best_is_the_first_of_equals_and_a_nan_is_never_better(looking):
    look, restored, folder = looking
    assert restored()[0] is None
    assert [look(1, np.nan), restored()[0]] == [0, None]
    found = [look(number, value) for number, value in ((2, 0.5), (3, 0.5), (4, np.nan), (5, 0.6))]
    assert found == [0, 1, 2, 0] and restored() == (5, [5, 0.6])
    assert [look(6, 0.1), look(7, 0.2)] == [1, 2]
    # A ps was lost, and with it the updates from 3 on.
    assert look(3, 0.7) == 0 and restored() == (3, [3, 0.7])
    assert {path.stem for path in (folder / "best").glob("model*")} == {"model.ckpt-3"}
    assert json.loads((folder / "best.json").read_text()) == {
        "global_step": 3, "value": 0.7, "not_better": 0, **WHAT}  # fmt: skip


@pytest.mark.parametrize("looking", [True], indirect=True)
def test_less_may_be_better(looking):
    look, restored, _ = looking
    assert [look(1, 0.5), look(2, 0.6), look(3, 0.4)] == [0, 1, 0]
    assert restored() == (3, [3, 0.4])


def test_an_evaluation_sees_the_parameters_of_one_moment(run, tmp_path):
    """Its 2,000 examples are in two calls; in between, a worker makes updates."""
    source = "def evaluate(w, x, labels):\n"
    each = "tf.fill(tf.shape(labels), tf.reduce_sum(w[0]))"
    root = changed(
        "HogWild",
        tmp_path / "mine",
        ("\n# 6. The monitored", f'\n{source}    return {{"total": {each}, "loss": {each}}}\n'
         'x, labels = data.load(flags, "test")\nimport numpy as np\n'
         "many = np.resize(x, [2000, 64]), np.resize(labels, [2000])\n\n# 6. The monitored"),
        ("server, params, [me])", "server, params, [me], evaluate=seen, test=many)"),
        ('"threads": None}', '"threads": None, "evaluate_on": 2000}'),
        ("import tensorflow.compat.v1 as tf\n", "import tensorflow.compat.v1 as tf\n" + SEEN),
    )  # fmt: skip
    finished = run("HogWild", "--steps", 1500, root=root)
    log = (finished.results / "logs" / "worker-0.log").read_text()
    moments = [line.split()[1:] for line in log.splitlines() if line.startswith("seen ")]
    assert len(moments) > 20 and len({tuple(each) for each in moments}) > 5
    pairs = list(zip(moments[0::2], moments[1::2], strict=True))
    assert all(a == b for a, b in pairs)


# What each of the two calls of an evaluation sees.
SEEN = """

def seen(w, x, labels):
    found = evaluate(w, x, labels)
    with tf.control_dependencies([tf.print("seen", tf.reduce_sum(w[0]))]):
        return {name: tf.identity(value) for name, value in found.items()}

"""


def test_the_picture_marks_what_was_kept():
    during = [{"global_step": k, "validation_accuracy": 0.9 - abs(k - 2) / 10, "examples": 3}
              for k in range(5)]  # fmt: skip
    last = {"global_step": 4, "test_accuracy": 0.8, "examples": 3, "best_step": 2}
    _, axes = plt.subplots()
    plots.tested(axes, [[]], [*during, last], time=False)
    curve, ring = axes.lines
    assert curve.get_ydata().tolist() == pytest.approx([30, 20, 10, 20, 30])
    assert (ring.get_xdata()[0], ring.get_ydata()[0]) == (2, pytest.approx(10))
    assert axes.get_ylabel() == "validation error"
    assert metric.text(last) == "test accuracy 80.00% (of update 2, the best)"
