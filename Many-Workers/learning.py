"""The data and the networks in NumPy, with all parameters in one flat array."""

import itertools
import math

import numpy as np

from common import datasets


def scaled(x: np.ndarray) -> np.ndarray:
    """Examples as rows of float32; image bytes become numbers in [0, 1]."""
    x = x.reshape(len(x), -1)
    return x.astype(np.float32) / 255 if x.dtype == np.uint8 else x.astype(np.float32)


class Problem:
    """A network, `linear` or `mlp` as in `common/models.py`, and the data.

    Attributes:
        size: the number of parameters.
        loss: of each worker's last gradient.
    """

    def __init__(self, flags):
        datasets.check_floats(flags)
        example, classes, _ = datasets.describe(flags)
        widths = [math.prod(example), classes]
        widths[1:1] = [flags.hidden] if flags.model == "mlp" else []
        # Weights [from, to], then biases [to], layer by layer.
        self.shapes = [s for a, b in itertools.pairwise(widths) for s in ([a, b], [b])]
        ends = [0, *itertools.accumulate(map(math.prod, self.shapes))]
        self.size = ends[-1]
        self.parts = list(zip(itertools.starmap(slice, itertools.pairwise(ends)), self.shapes))
        self.flags, self.loss = flags, [0.0] * flags.workers
        reader = datasets.reader(flags.data)
        (x, self.labels), (test_x, self.test_labels) = (
            reader.load(flags, part) for part in ("train", "test")
        )
        self.x, self.test_x = scaled(x), scaled(test_x)
        self.batches = [self._batches(k) for k in range(flags.workers)]

    def initial(self) -> np.ndarray:
        """Zeros; the weights of `mlp` are He normal (arXiv 1502.01852)."""
        random, w = np.random.default_rng(self.flags.seed), np.zeros(self.size, np.float32)
        if self.flags.model == "mlp":
            for part in self.split(w)[::2]:
                part[:] = random.normal(0, math.sqrt(2 / len(part)), part.shape)
        return w

    def split(self, w: np.ndarray) -> list[np.ndarray]:
        """Views of the flat array in the parameters' shapes."""
        return [w[part].reshape(shape) for part, shape in self.parts]

    def named(self, w: np.ndarray) -> dict[str, np.ndarray]:
        """The same with the names that they have in `parameters.npz`."""
        names = [f"{kind}_{i}" for i in range(len(self.shapes)) for kind in ("weights", "biases")]
        return dict(zip(names, self.split(w)))

    def batch(self, k: int) -> int:
        """The number of examples in worker k's mini-batches."""
        return self.flags.batch_size or len(range(k, len(self.labels), self.flags.workers))

    def _batches(self, k: int):
        """Indices of worker k's mini-batches: its shard, reshuffled in every epoch."""
        shard, size = np.arange(k, len(self.labels), self.flags.workers), self.flags.batch_size
        while not size:
            yield shard  # in order
        random = np.random.default_rng([self.flags.seed, k])
        several = np.tile(shard, (max(1, math.ceil(size / len(shard))), 1))  # epochs
        left = shard[:0]
        while True:
            while len(left) < size:
                left = np.concatenate([left, random.permuted(several, axis=1).ravel()])
            yield left[:size]
            left = left[size:]

    def gradient(self, k: int, w: np.ndarray) -> np.ndarray:
        """The gradient of the mean softmax cross-entropy of worker k's next mini-batch, at w."""
        chosen = next(self.batches[k])
        x, rows, labels = self.x[chosen], np.arange(len(chosen)), self.labels[chosen]
        *hidden, weights, biases = self.split(w)
        inputs = [x, np.maximum(x @ hidden[0] + hidden[1], 0)] if hidden else [x]
        p = _softmax(inputs[-1] @ weights + biases)
        self.loss[k] = float(-np.log(np.maximum(p[rows, labels], 1e-30)).mean())
        p[rows, labels] -= 1
        p /= len(rows)
        found = np.empty_like(w)
        *of_hidden, of_weights, of_biases = self.split(found)
        np.matmul(inputs[-1].T, p, out=of_weights)
        np.sum(p, axis=0, out=of_biases)
        if hidden:
            back = (p @ weights.T) * (inputs[1] > 0)
            np.matmul(x.T, back, out=of_hidden[0])
            np.sum(back, axis=0, out=of_hidden[1])
        return found

    def evaluate(self, w: np.ndarray) -> dict[str, float]:
        """The accuracy and mean loss on the test set, and how many examples it has."""
        *hidden, weights, biases = self.split(w)
        x = self.test_x
        if hidden:
            x = x @ hidden[0]  # large: so nothing is copied
            x += hidden[1]
            np.maximum(x, 0, out=x)
        p = _softmax(x @ weights + biases)
        right = p.argmax(axis=1) == self.test_labels
        loss = -np.log(np.maximum(p[np.arange(len(p)), self.test_labels], 1e-30))
        return {"test_accuracy": float(right.mean()), "test_loss": float(loss.mean()),
                "examples": len(p)}  # fmt: skip


class Nothing:
    """In place of a `Problem`: no parameters and no gradients, to measure speed and staleness."""

    size, shapes = 0, []

    def __init__(self, flags):
        self.flags, self.loss = flags, [0.0] * flags.workers

    def batch(self, k: int) -> int:
        return self.flags.batch_size

    def initial(self) -> float:
        return 0.0

    def gradient(self, k: int, w: float) -> float:
        return 0.0


def _softmax(scores: np.ndarray) -> np.ndarray:
    p = scores - scores.max(axis=1, keepdims=True)
    np.exp(p, out=p)
    p /= p.sum(axis=1, keepdims=True)
    return p
