"""The schemes in plain NumPy, written only from their formulas.

`SCHEMES` has an entry for every folder with a `worker.py` or a `chief.py`: what it computes, which
example it derives from, and how many lines may differ. The tests find the folders themselves, and
fail with instructions if one has no entry here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from common.told.example import main_script

ROOT = Path(__file__).resolve().parents[1]


def digits(part: str = "train") -> tuple[np.ndarray, np.ndarray]:
    """The digits as the README documents them: shuffled with seed 0, every fifth for testing."""
    source = load_digits()
    order = np.random.default_rng(0).permutation(len(source.target))
    test = np.arange(len(order)) % 5 == 0
    chosen = order[test if part == "test" else ~test]
    return source.data[chosen] / 16, source.target[chosen]


def softmax_gradient(w, b, x, labels):
    """Gradient of the mean softmax cross-entropy of x w + b, written from its formula."""
    scores = x @ w + b
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    p[np.arange(len(labels)), labels] -= 1
    return x.T @ p / len(labels), p.mean(axis=0)


def gradient(worker: int = 0, workers: int = 1) -> Callable[[np.ndarray], np.ndarray]:
    """The gradient of `linear` at flat parameters, on worker k's shard: examples k, k + n, ..."""
    x, labels = (part[worker::workers] for part in digits())

    def g(flat):
        grad_w, grad_b = softmax_gradient(flat[:640].reshape(64, 10), flat[640:], x, labels)
        return np.concatenate([grad_w.ravel(), grad_b])

    return g


class HogWild:
    """w~ <- w~ - eta g(w_pulled)

    A scheme has two parts: what worker k pushes after a pull, and what the server does with a push.
    `flags` are the run's; `w` are the initial global parameters.
    """

    def __init__(self, flags: dict, w: np.ndarray):
        self.eta, self.window = flags["learning_rate"], flags.get("window", 1)
        self.gradients = [gradient(k, flags["workers"]) for k in range(flags["workers"])]
        self.flags = flags

    def push(self, k: int, pulled: np.ndarray) -> np.ndarray:
        return self.gradients[k](pulled)

    def update(self, w: np.ndarray, a: np.ndarray, s: int, pulled: np.ndarray) -> np.ndarray:
        """`s` is the staleness: updates by others since the pull."""
        return w - self.eta * a


class AGN(HogWild):
    """T times: w <- w - eta g_t. Then w~ <- w~ - eta (1/T) sum g_t"""

    def total(self, k, pulled):
        w, total = pulled, 0
        for _ in range(self.window):
            g = self.gradients[k](w)
            w, total = w - self.eta * g, total + g
        return total

    def push(self, k, pulled):
        return self.total(k, pulled) / self.window


class DownpourEasy(AGN):
    """G <- G + a^2, w~ <- w~ - eta a / sqrt(G) with the sum a = sum g_t; G starts at 0.1"""

    def __init__(self, flags, w):
        super().__init__(flags, w)
        self.G = np.full_like(w, 0.1)

    def push(self, k, pulled):
        return self.total(k, pulled)

    def update(self, w, a, s, pulled):
        self.G = self.G + a**2
        return w - self.eta * a / np.sqrt(self.G)


class Downpour(DownpourEasy):
    """The local steps use Adagrad too: H <- H + g_t^2, w <- w - eta g_t / sqrt(H)"""

    def __init__(self, flags, w):
        super().__init__(flags, w)
        self.H = [np.full_like(w, 0.1) for _ in self.gradients]

    def total(self, k, pulled):
        w, total = pulled, 0
        for _ in range(self.window):
            g = self.gradients[k](w)
            self.H[k] = self.H[k] + g**2
            w, total = w - self.eta * g / np.sqrt(self.H[k]), total + g
        return total


class DynamicSGD(AGN):
    """w~ <- w~ + d / (s + 1), with d = w - w_pulled after T local steps"""

    def push(self, k, pulled):
        w = pulled
        for _ in range(self.window):
            w = w - self.eta * self.gradients[k](w)
        return w - pulled

    def update(self, w, a, s, pulled):
        return w + a / (s + 1)


class AEAMSGD(HogWild):
    """With x = w, e = alpha (x - w~): w <- w - e, w~ <- w~ + e; then T times
    v <- delta v - eta g(x + delta v), w <- w + v, where x = w from the second time on
    (Algorithm 2 of arXiv 1412.6651)"""

    def __init__(self, flags, w):
        super().__init__(flags, w)
        self.alpha, self.delta = flags["moving_rate"], flags.get("momentum", 0.0)
        self.own = [w.copy() for _ in self.gradients]
        self.v = [np.zeros_like(w) for _ in self.gradients]

    def push(self, k, pulled):
        x = w = self.own[k]
        e = self.alpha * (x - pulled)
        w = w - e
        for _ in range(self.window):
            g = self.gradients[k](x + self.delta * self.v[k])
            self.v[k] = self.delta * self.v[k] - self.eta * g
            x = w = w + self.v[k]
        self.own[k] = w
        return e

    def update(self, w, a, s, pulled):
        return w + a


class AEASGD(AEAMSGD):
    """The same without momentum (Algorithm 1)"""


class DCASGD(HogWild):
    """w~ <- w~ - eta (g + lambda g g (w~ - w_pulled))  (arXiv 1609.08326, Algorithm 2)"""

    def update(self, w, a, s, pulled):
        return w - self.eta * (a + self.flags["dc_lambda"] * a * a * (w - pulled))


class SynchronousSGD(HogWild):
    """w~ <- w~ - sum_k rate_k a_k, where worker k pushes a_k = g_k(w~)"""

    def rates(self):
        return [self.eta / self.flags["workers"]] * self.flags["workers"]

    def round(self, w: np.ndarray) -> np.ndarray:
        """The global parameters after a round with all workers."""
        return w - sum(rate * self.push(k, w) for k, rate in enumerate(self.rates()))


class DifferentRates(SynchronousSGD):
    """w~ <- w~ - sum_k eta_k g_k"""

    def rates(self):
        return self.flags["learning_rates"]


class SAGN(SynchronousSGD, AGN):
    """w~ <- w~ - (eta/n) sum_k a_k, with the mean a_k = (1/T) sum g_{k,t} of T local steps"""


class LocalSGD(SynchronousSGD, DynamicSGD):
    """T times w <- w - eta g; then w~ becomes the mean of the workers' w: w~ + (1/n) sum_k d_k"""

    def round(self, w):
        n = self.flags["workers"]
        return sum(w + self.push(k, w) for k in range(n)) / n


@dataclass
class Scheme:
    """An entry of the catalogue.

    Attributes:
        formula: the class above, or None if another test compares the folder with NumPy.
        parent: the script it derives from; just the folder's name for its main script.
        changed: at most this many lines of code are added, and at most this many removed.
        flags: flags that make the scheme's own term visible.
        workers: of the run that is compared with the formula; three for asynchronous schemes, and
            where two do not show all of the formula.
    """

    formula: type[HogWild] | None
    parent: str
    changed: int
    flags: tuple[str, ...] = ()
    workers: int = 2


SCHEMES = {
    "Distributed-Setup": Scheme(HogWild, "Non-Distributed-Setup/train.py", 14),
    "HogWild": Scheme(HogWild, "Distributed-Setup", 2, workers=3),
    "AGN": Scheme(AGN, "HogWild", 13, workers=3),
    "DOWNPOUR-Easy": Scheme(DownpourEasy, "AGN", 4, workers=3),
    "DOWNPOUR": Scheme(Downpour, "DOWNPOUR-Easy", 10, workers=3),
    "Dynamic-SGD": Scheme(DynamicSGD, "AGN", 9, workers=3),
    "AEASGD": Scheme(AEASGD, "AGN", 26, workers=3),
    "AEAMSGD": Scheme(AEAMSGD, "AEASGD", 12, workers=3),
    "DC-ASGD": Scheme(DCASGD, "HogWild", 7, ("--dc_lambda", "2"), workers=3),
    "Synchronous-SGD": Scheme(SynchronousSGD, "Distributed-Setup", 14, workers=3),
    "Synchronous-SGD-different-learning-rates": Scheme(
        DifferentRates, "Synchronous-SGD", 5, ("--learning_rates", "0.5,0.1,0.3"), workers=3
    ),
    "SAGN": Scheme(SAGN, "Synchronous-SGD", 15),
    "Local-SGD": Scheme(LocalSGD, "SAGN", 10),
    "Multiple-GPUs-Single-Machine": Scheme(HogWild, "HogWild", 15),
    "Model-Parallelism": Scheme(None, "Non-Distributed-Setup/train.py", 75),
    "Your-Own": Scheme(None, "HogWild", 30),
    "One-Network-per-Device": Scheme(None, "Non-Distributed-Setup/train.py", 62),
    "In-Graph-Replication": Scheme(None, "Multiple-GPUs-Single-Machine/towers.py", 27),
    "CIFAR-10": Scheme(None, "HogWild", 60),
    "Actor-Learner": Scheme(None, "HogWild", 97),
    "TensorFlow-2": Scheme(None, "HogWild", 100),
}


def folders() -> list[str]:
    """Every example with several tasks."""
    return sorted(path.parent.name for path in ROOT.glob("[!.]*/worker.py"))


def parent_of(example: str) -> Path:
    """The script that an example's main script derives from."""
    parent = ROOT / of(example).parent
    return main_script(parent) if parent.is_dir() else parent


def of(example: str) -> Scheme:
    """The entry of a folder.

    Raises:
        AssertionError: if it has none; says what to do.
    """
    assert example in SCHEMES, (
        f"{example} has no formula: write the scheme in NumPy as a class in "
        "tests/formulas.py, and add the folder with its parent to SCHEMES there"
    )
    return SCHEMES[example]
