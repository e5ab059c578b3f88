"""Saves what a run has trained, for Keras and TensorFlow 2 without sessions.

    .venv/bin/python Keras-Model/export.py RESULTS_DIR

It reads the run's flags and parameters, builds the same network in eager TensorFlow, and writes
into the results folder:

    model.keras    for keras.saving.load_model: the network, to train further or to change
    served/        for tf.saved_model.load and TensorFlow Serving: serve(x) gives the outputs
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # common/ is next to this folder
from common import data, fail  # import first: quiet start-up
from common.record import results
import numpy as np
import tensorflow as tf

import network  # in this folder


def read(folder: Path) -> tuple[argparse.Namespace, list[np.ndarray]]:
    """A run's flags, and its parameters with its state, in the order of the network."""
    paths = folder / "summary.json", folder / "parameters.npz"
    for path in paths:
        if not path.is_file():
            fail(f"{path} is missing: give the results folder of a run that has ended")
    try:
        flags = argparse.Namespace(**json.loads(paths[0].read_text(encoding="utf-8"))["flags"])
        with np.load(paths[1]) as file:
            return flags, [file[name] for name in file.files]
    except Exception as error:  # cut off, or another file
        fail(f"{folder} cannot be read as the results of a run: {error}")


def rebuilt(flags: argparse.Namespace, values: list[np.ndarray]):
    """The network with these values in its variables."""
    net = network.create(flags)
    variables = [v for part in network.variables(net) for v in part]
    if [v.shape.as_list() for v in variables] != [list(value.shape) for value in values]:
        fail("these parameters do not fit the network of network.py: was it changed after the run?")
    for variable, value in zip(variables, values):
        variable.assign(value)
    return net


def accuracy(net, flags: argparse.Namespace) -> float:
    """The share of the test examples that the network recognises."""
    x, labels = data.load(flags, "test")
    parts = [net(data.scaled(tf.constant(x[i : i + 1000]))) for i in range(0, len(x), 1000)]
    return float(np.mean(np.argmax(np.concatenate(parts), axis=1) == labels))


def write(net, folder: Path) -> None:
    """Writes model.keras and served/, both whole or not at all; replaces older ones."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=".export-") as temporary:
        made = Path(temporary)
        net.save(made / "model.keras")
        net.export(made / "served", verbose=False)
        shutil.rmtree(folder / "served", ignore_errors=True)
        for name in ("served", "model.keras"):
            os.replace(made / name, folder / name)


def main() -> None:
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        fail("give one results folder: .venv/bin/python Keras-Model/export.py RESULTS_DIR")
    folder = Path(sys.argv[1])
    flags, values = read(folder)
    if getattr(flags, "model", None) != "keras_net":
        fail(f"{folder} holds a run of another example")
    net = rebuilt(flags, values)
    found = accuracy(net, flags)
    results.create(folder)
    write(net, folder)
    print(f"{results.shown(folder / 'model.keras')}: for keras.saving.load_model")
    print(f"{results.shown(folder / 'served')}: for tf.saved_model.load and TensorFlow Serving")
    print(f"test accuracy {found:.2%}")


if __name__ == "__main__":
    main()
