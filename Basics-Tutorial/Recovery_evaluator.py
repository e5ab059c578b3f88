"""An evaluator beside a training run: watches a folder for checkpoints, and evaluates each.

    python Recovery_evaluator.py FOLDER

It needs the files only: no address, no session, not even a running cluster.
"""

import sys
import time

import numpy as np
import tensorflow.compat.v1 as tf

from common.datasets import digits
from common.training import checkpoints

x, labels = digits.load(None, "test")  # what --data digits uses
x = x.reshape(len(x), -1)
print("evaluates on", len(x), "test examples", flush=True)
for path in tf.train.checkpoints_iterator(sys.argv[1], min_interval_secs=0.2):
    try:
        w = checkpoints.values(path)
    except Exception as error:  # two newer ones exist already, and this one is gone
        print("skips", path, type(error).__name__, flush=True)
        continue
    hidden = np.maximum(x @ w["weights_0"] + w["biases_0"], 0)
    scores = hidden @ w["weights_1"] + w["biases_1"]
    right = np.mean(scores.argmax(1) == labels)
    print(f"update {w['global_step']} accuracy {right:.4f} time {time.time():.3f}", flush=True)
