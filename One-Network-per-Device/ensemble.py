"""Evaluates the networks, individually and as an ensemble."""

import json
import math
from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf

from common import data, fail, models
from common.record import results
from common.training import events


def probabilities(task, model: str, arrays: list[np.ndarray], x: np.ndarray) -> np.ndarray:
    """The class probabilities [examples, classes], float64, for x [examples, ...] from the network
    with the parameters `arrays`."""
    with tf.Graph().as_default(), tf.Session(config=task.config) as sess:
        some = tf.placeholder(x.dtype, [None, *x.shape[1:]])
        output = models.logits(model, [tf.constant(array) for array in arrays], data.scaled(some))
        answer = tf.nn.softmax(tf.cast(output, tf.float64))
        parts = [sess.run(answer, {some: x[i : i + 1000]}) for i in range(0, len(x), 1000)]
    return np.concatenate(parts)


def measure(p: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """Accuracy and loss of the probabilities p [examples, classes]. The loss is infinite or NaN if
    the network diverged."""
    with np.errstate(divide="ignore"):
        losses = -np.log(p[np.arange(len(labels)), labels])
    return float(np.mean(p.argmax(axis=1) == labels)), float(losses.mean())


def line(trial: int, own, result) -> str:
    """The line that the screen shows for a trial with the settings `own`."""
    width = f"  width {own.hidden}" if own.hidden else ""
    reached = f"validation {result.accuracy:.1%}" if math.isfinite(result.loss) else "diverged"
    return f"trial {trial}: rate {own.learning_rate:g}{width}  {reached}"


def write(task, settings: list, names: list[str], found: list) -> None:
    """Tests all networks and the ensemble of those that did not diverge; writes the results.

    Args:
        task: the chief.
        settings, found: each trial's flags and its `search.Result`.
        names: the names of a network's parameters.
    """
    where = task.flags.results
    good = [t for t, result in enumerate(found) if math.isfinite(result.loss)]
    if not good:
        fail("every network diverged: try smaller --rates")
    x, labels = data.load(task.flags, "test")
    answers = {t: probabilities(task, settings[t].model, found[t].arrays, x) for t in good}
    tested = {t: measure(answers[t], labels) for t in good}
    accuracy, loss = measure(sum(answers.values()) / len(good), labels)  # of the ensemble
    mean = float(np.mean([alone for alone, _ in tested.values()]))
    ranked = sorted(good, key=lambda t: (-found[t].accuracy, found[t].loss))
    best = ranked[0]

    rows, members = [], {}
    for t, (own, result) in enumerate(zip(settings, found)):
        row = {
            "trial": t, "learning_rate": own.learning_rate, "hidden": own.hidden, "seed": own.seed,
            "worker": result.worker, "updates": result.updates, "seconds": result.seconds,
        }  # fmt: skip
        if t in tested:
            row |= {"validation_accuracy": result.accuracy, "validation_loss": result.loss}
            row |= dict(zip(("test_accuracy", "test_loss"), tested[t]))
        rows.append(json.dumps(row) + "\n")
        members |= {f"trial_{t}/{name}": array for name, array in zip(names, result.arrays)}
    text = "".join(rows).encode()
    results.write(Path(where, "trials.jsonl"), lambda file: file.write(text))
    results.write(Path(where, "members.npz"), lambda file: np.savez(file, **members))
    events.finish(
        task.flags, dict(zip(names, found[best].arrays)), sum(result.updates for result in found),
        test_accuracy=tested[best][0], test_loss=tested[best][1], best_trial=best,
        members_mean_accuracy=mean, ensemble_accuracy=accuracy, ensemble_loss=loss,
    )  # fmt: skip

    print("> best first:")
    for t in ranked:
        print(f"> {line(t, settings[t], found[t])}  test {tested[t][0]:.1%}")
    print(f"> test accuracy: {tested[best][0]:.1%} for the best, {mean:.1%} on average, "
          f"{accuracy:.1%} for the ensemble of {len(good)}", flush=True)  # fmt: skip
