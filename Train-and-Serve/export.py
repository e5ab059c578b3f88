"""Makes a SavedModel of a finished run, which TensorFlow 2 and TensorFlow Serving load without this
folder: `python export.py RESULTS` writes RESULTS/served.

It takes columns as they are in the table, [batch] each: words, and numbers as floats. A gap is the
empty word, or NaN. It returns the prediction, [batch], in the target's unit.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parent.parent))  # common/ is beside this folder
from common import fail
import numpy as np
import tensorflow as tf

import network  # in this folder, as is table
import table


def served(folder: Path) -> Path:
    """Writes the SavedModel of the run in this results folder. Returns where it is."""
    for name in ("summary.json", "parameters.npz"):
        if not (folder / name).is_file():
            fail(
                f"{folder} has no {name}: give the results folder of a run that has ended (by "
                "hand: after common.commands.collect)"
            )
    flags = json.loads((folder / "summary.json").read_text())["flags"]
    learnt_in = Path(flags["checkpoint_dir"], table.FILE)
    if (folder / "checkpoints" / table.FILE).is_file():  # also if the folder has been moved
        learnt_in = folder / "checkpoints" / table.FILE
    if not learnt_in.is_file():
        fail(f"{learnt_in} is missing: it says what the run has learnt about the table")
    learnt = json.loads(learnt_in.read_text())
    model = tf.Module()
    with np.load(folder / "parameters.npz") as file:
        model.params = [tf.Variable(file[name], name=name) for name in file.files]

    @tf.function
    def predict(**columns):
        return {target: network.predict(model.params, columns, learnt)}

    (target,) = learnt["target"]
    kinds = dict.fromkeys(learnt["words"], tf.string)
    kinds |= dict.fromkeys(learnt["numbers"], tf.float32)
    columns = {name: tf.TensorSpec([None], kind, name) for name, kind in kinds.items()}
    place = folder / "served"
    with tempfile.TemporaryDirectory(dir=folder) as whole:
        tf.saved_model.save(
            model, f"{whole}/served", signatures=predict.get_concrete_function(**columns)
        )
        shutil.rmtree(place, ignore_errors=True)  # of an earlier export
        Path(whole, "served").rename(place)
    return place


if __name__ == "__main__":
    if len(sys.argv) != 2:
        fail("give one results folder: python export.py RESULTS")
    print(f"the model is in {served(Path(sys.argv[1]))}")
