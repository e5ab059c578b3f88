"""Small problems for `simulate`, workers that take turns, and runs that nobody looks at."""

from collections import defaultdict

import numpy as np
from cluster import Cluster
from learning import Nothing


class Unwatched(Cluster):
    """Nobody evaluates, so the link carries only what the scheme needs."""

    def confirm(self, k, told):
        yield self.wait(told)


class Written:
    """In place of a `Report`: keeps the `lines` of each file, by its name, and the time of each of
    the `updates`."""

    def __init__(self):
        self.lines, self.updates = defaultdict(list), []

    def write(self, name: str, line: dict) -> None:
        self.lines[name].append(line)

    def show(self, journal, number: int) -> None:
        self.updates.append(journal.time)

    def events(self) -> list[list[dict]]:
        """The events of each worker."""
        return [self.lines[name] for name in sorted(self.lines) if name.startswith("events-")]


class InTurn(Cluster):
    """Worker k's first mini-batch takes k / n longer. Without latency the n workers then take
    turns: after the first round, every update has a staleness of exactly n - 1. It knows no window,
    and ignores `--spread` and `--delay`."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        n = self.flags.workers
        self.late = [k / n * self.flags.compute for k in range(n)]

    def computing(self, k, begun=None):
        seconds, self.late[k] = self.flags.compute + self.late[k], 0.0
        self.computed[k] = self.env.now + seconds
        return self.wait(seconds)


class Parabola(Nothing):
    """The loss w^2 / 2, so the gradient is w, and the curvature 1. w starts at 1."""

    def initial(self) -> float:
        return 1.0

    def gradient(self, k: int, w: float) -> float:
        return w


class Sparse(Nothing):
    """Logistic regression on examples with few features, as in the paper on HogWild!. One has
    `present` of the `features`, drawn with replacement; one drawn twice has the value 2, the others
    1. A gradient changes only their weights.
    Worker k draws one example per step. `errors`: the error after every 500 gradients in the second
    half of the run.

    Args:
        flags: the command line.
        features, present, examples: how many.
    """

    def __init__(self, flags, features: int = 1000, present: int = 5, examples: int = 20_000):
        super().__init__(flags)
        random = np.random.default_rng(flags.seed)
        self.features = features
        self.x = random.integers(0, features, (examples, present))  # which features it has
        truth = random.normal(size=features)
        self.y = np.where(truth[self.x].sum(axis=1) > 0, 1.0, -1.0)
        self.drawn = [np.random.default_rng([flags.seed, k]) for k in range(flags.workers)]
        self.steps, self.made, self.errors = flags.steps, 0, []

    def initial(self) -> np.ndarray:
        return np.zeros(self.features)

    def gradient(self, k: int, w: np.ndarray) -> np.ndarray:
        """Of log(1 + exp(-y w x)), for one example."""
        self.made += 1
        if self.made % 500 == 0 and self.made > self.steps / 2:
            self.errors.append(self.error(w))
        i = self.drawn[k].integers(len(self.y))
        found = np.zeros(self.features)
        slope = -self.y[i] / (1 + np.exp(self.y[i] * w[self.x[i]].sum()))
        np.add.at(found, self.x[i], slope)
        return found

    def error(self, w: np.ndarray) -> float:
        """The share of examples that are misclassified; ties count."""
        return float((w[self.x].sum(axis=1) * self.y <= 0).mean())
