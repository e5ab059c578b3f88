"""A project's own metric, and flags that say how often to evaluate and to save."""

import math

import matplotlib.pyplot as plt
import pytest
from test_stopping import changed

from common.pictures import curves, plots
from common.record import metric, trace
from common.training import evaluation

DEFAULTS = '"threads": None}\n'
FLAGS = (
    DEFAULTS,
    '"threads": None, "target": None,\n            "evaluate_every": None, "evaluate_on": 1000, '
    '"checkpoint_every": None, "keep_checkpoints": 2}\n',
)
# The digit as a number: the probabilities' mean, and how far it is from the right one.
EVALUATE = """
import math


def evaluate(w, x, labels):
    p = tf.nn.softmax(models.logits(flags.model, w, x))
    found = tf.linalg.matvec(p, tf.range(10.0))
    squared = (found - tf.cast(labels, tf.float32)) ** 2
    losses = models.evaluate(flags.model, w, x, labels)["loss"]
    return {"RMSE": session.Metric(squared, math.sqrt, lower=True), "loss": losses}


# 6. The monitored"""
TRAINING = "server, params, [me])"


@pytest.fixture
def root(tmp_path):
    return changed(
        "HogWild",
        tmp_path / "mine",
        FLAGS,
        ("\n# 6. The monitored", EVALUATE),
        (TRAINING, "server, params, [me], evaluate=evaluate)"),
    )


def test_a_run_that_is_evaluated_only_at_its_ends(run):
    """No worker spends time on it meanwhile: for measurements of speed."""
    finished = run("HogWild", "--model", "linear", "--steps", 400, "--evaluate_every", 10**6)
    first, last = (each["global_step"] for each in trace.read_evaluations(finished.results))
    assert first < 60 and last == 400


def test_a_run_names_its_metric(run, root):
    finished = run("HogWild", "--steps", 400, "--evaluate_every", 100, "--evaluate_on", 50,
                   "--workers", 1, root=root, curves=True)  # fmt: skip
    found = finished.summary["test_RMSE"]
    assert 0.05 < found < 1.5 and "test_accuracy" not in finished.summary
    assert finished.output.splitlines()[-1].startswith(f"test RMSE {found:.4g}; results in ")
    assert f"\ntest RMSE {found:.4g} after 400 updates; " in finished.output or (
        f"test RMSE {found:.4g} after 400 updates; "
        in (finished.results / "logs" / "worker-0.log").read_text()
    )
    title = curves.title(finished.summary, curves.read(root / "HogWild"))
    assert title.endswith(f"{found:.4g} test RMSE on digits")
    steps = [each["global_step"] for each in trace.read_evaluations(finished.results)]
    # The hooks see at least every fiftieth step, and the last one may be seen before the end.
    assert len(steps) in (6, 7)
    assert all(0 <= step - wanted < 60 for step, wanted in zip(steps, [0, 100, 200, 300]))
    assert steps[-1] == 400
    *_, on_sample, at_end = trace.read_evaluations(finished.results)
    assert at_end["test_RMSE"] == found > 0 and at_end["examples"] == 360
    assert on_sample["global_step"] == 400 and on_sample["examples"] == 45  # every eighth


def test_only_evaluations_on_as_many_examples_are_compared():
    evaluations = [{"global_step": k, "test_accuracy": 0.5 + k / 10, "test_loss": 1.0,
                    "examples": 9 if k == 2 else 3} for k in range(4)]  # fmt: skip
    _, axes = plt.subplots()
    plots.tested(axes, [[]], evaluations, time=False)
    (line,) = axes.lines
    assert line.get_xdata().tolist() == [0, 1, 3]


def test_a_run_stops_when_its_metric_is_low_enough(run, root):
    finished = run("HogWild", "--steps", 10**6, "--target", 1.5, "--workers", 1, root=root)
    assert finished.summary["test_RMSE"] <= 1.5
    assert 0 < finished.summary["global_step"] < 10**5


def test_another_metric_has_no_target_accuracy(run, root):
    finished = run("HogWild", "--target_accuracy", 0.9, root=root, ok=False)
    assert finished.code == 2
    assert "error: --target_accuracy: the metric is the test RMSE" in finished.output


def test_checkpoints_come_as_often_and_stay_as_long_as_told(run, root):
    finished = run("HogWild", "--steps", 400, "--checkpoint_every", 100, "--keep_checkpoints", 3,
                   "--workers", 1, root=root)  # fmt: skip
    kept = sorted(
        int(path.stem.partition("-")[2])
        for path in (finished.results / "checkpoints").glob("model.ckpt-*.index")
    )
    assert len(kept) == 3 and kept[-1] == 400
    assert all(0 <= number - wanted < 60 for number, wanted in zip(kept, [200, 300, 400]))


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ({"global_step": 3, "test_accuracy": 0.9751, "test_loss": 0.1}, "test accuracy 97.51%"),
        ({"test_loss": 0.1, "test_accuracy": 1.0}, "test accuracy 100.00%"),
        ({"test_RMSE": 0.51234, "test_loss": 0.1}, "test RMSE 0.5123"),
        ({"test_hit_rate": 0.5, "test_loss": 0.1}, "test hit rate 0.5"),
        ({"test_loss": 0.1}, "test loss 0.1"),
        ({"global_step": 3}, ""),
    ],
)
def test_the_metric_is_the_accuracy_or_the_first_measure(found, text):
    assert metric.text(found) == text


def test_a_metric_may_overflow():
    perplexity = evaluation.Metric(None, math.exp, lower=True)
    assert evaluation._of_mean(perplexity, 1.0) == pytest.approx(math.e)
    assert evaluation._of_mean(perplexity, 1e6) == math.inf
    assert math.isnan(evaluation._of_mean(perplexity, math.nan))


MORE = """
with tf.device(task.device):
    here = tf.identity(loss)
with tf.device("/job:ps/task:0"):
    there = [tf.cast(update.number, tf.float32), tf.ones([])]

# 6. The monitored"""


def test_events_can_say_more(run, tmp_path):
    """The sum of scalars on any device."""
    root = changed(
        "HogWild",
        tmp_path / "mine",
        ("\n# 6. The monitored", MORE),
        ("push, update)  #", 'push, update, more={"again": [here], "after": there})  #'),
    )
    finished = run("HogWild", "--steps", 60, "--steps_per_execution", 4, root=root)
    for k in range(2):
        for event in finished.events(k):
            assert event["again"] == event["loss"]
            assert event["after"] == event["global_step"]
