"""docs/QUESTIONS.md: its recipes, put into a copy of HogWild, train and stop."""

import re

import pytest
from conftest import ROOT
from test_stopping import assert_complete, changed

SOURCE = (ROOT / "HogWild" / "worker.py").read_text()
EVALUATE = """def evaluate(w, x, labels):
    output, _ = net.stateless_call(w, [], x)
    loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=output)
    return {"accuracy": tf.equal(tf.argmax(output, axis=1), labels), "loss": loss}


"""


def recipes(heading: str) -> list[str]:
    """The Python below a heading."""
    page = (ROOT / "docs/QUESTIONS.md").read_text()
    section = page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", section, re.S)


@pytest.mark.slow("runs with Keras")
def test_a_keras_model_trains_until_a_hook_stops_it(run, tmp_path):
    (model,) = recipes("Can I use a Keras model?")
    *_, hook = recipes("How do I stop a run early?")
    imported, setter, scheme = re.split(r"\n\n(?:# in step 5.*\n)?", model)
    replaced = SOURCE[
        SOURCE.index("with tf.device(tf.train.replica") : SOURCE.index("with tf.device(task.")
    ]
    gradients = "    loss, grads = models.gradients(flags, pull.w, next_batch())\n"
    root = changed(
        "HogWild",
        tmp_path,
        ("import tensorflow.compat.v1 as tf\n", f"import tensorflow.compat.v1 as tf\n{imported}\n"),
        (replaced, f"{setter}\n\n"),
        (gradients, "".join(f"    {line}\n" for line in scheme.splitlines())),
        ("# 6. The monitored", f"{EVALUATE}{hook}\n\n# 6. The monitored"),
        ("params, [me])", "params, [me], evaluate=evaluate, hooks=[StopEarly()])"),
    )
    finished = run("HogWild", "--steps", 10**6, root=root)
    assert_complete(finished)
    assert finished.summary["test_accuracy"] > 0.9
