"""The data: who rated what, and how.

--data planted: ratings that a model of rank 4 has made, with noise:

    rating = 3.5 + a_user + b_item + p_user . q_item + noise

a and b are normal with a deviation of 0.2, the noise with one of 0.3, and that of the product is
0.5. Users rate equally often, an item of rank r in proportion to 1 / r ^ --zipf. No model can have
a test RMSE below that of the noise, 0.3, except by luck.
--data movielens: MovieLens 100K, downloaded once. --data PATH.csv: a header, then lines of user,
item and rating; users and items may be any words.

A user's row in the table is its number; an item's is its number after all users. Every tenth
rating is a test example.
"""

import csv
import functools
import math
import zipfile
from typing import NamedTuple

import about  # in this folder
import numpy as np

from common import data, fail
from common.datasets import download

# Of --data planted: the mean, the deviations, and the rank of the product.
MEAN, BIAS, PRODUCT, NOISE, RANK = 3.5, 0.2, 0.5, 0.3, 4


class Ratings(NamedTuple):
    """Attributes:
    ids: the rows of the user and of the item of each rating, int64 [ratings, 2].
    values: float32 [ratings].
    users, items: how many there are.
    clean: planted ratings without their noise; None of others.
    """

    ids: np.ndarray
    values: np.ndarray
    users: int
    items: int
    clean: np.ndarray | None = None

    def part(self, test: bool) -> "Ratings":
        """Every tenth rating, or the others."""
        chosen = (np.arange(len(self.values)) % 10 == 0) == test
        clean = None if self.clean is None else self.clean[chosen]
        return self._replace(ids=self.ids[chosen], values=self.values[chosen], clean=clean)


@functools.cache
def read(flags_data: str, *planted) -> Ratings:
    """All ratings; `planted`: the arguments of `plant`, or of movielens the `--data_url`.

    Exits with a one-line error if the file is bad.
    """
    if flags_data == "planted":
        return plant(*planted)
    lines = _movielens(*planted) if flags_data == "movielens" else _csv(flags_data)
    return _numbered(lines, flags_data)


def of(flags) -> Ratings:
    if flags.data == "movielens":
        return read(flags.data, flags.data_url)
    if flags.data != "planted":
        return read(flags.data)
    counts = flags.planted_users, flags.planted_items, flags.planted_ratings
    return read(flags.data, *counts, flags.zipf, flags.seed)


def plant(users: int, items: int, ratings: int, zipf: float, seed: int) -> Ratings:
    rng = np.random.default_rng(seed)
    a, b = (BIAS * rng.standard_normal(n) for n in (users, items))
    scale = math.sqrt(PRODUCT / math.sqrt(RANK))  # of each factor of the product
    p, q = (scale * rng.standard_normal([n, RANK]) for n in (users, items))
    often = 1 / np.arange(1, items + 1) ** zipf
    user = rng.integers(0, users, ratings)
    item = np.searchsorted(np.cumsum(often / often.sum())[:-1], rng.random(ratings))
    item = rng.permutation(items)[item]  # popular items are anywhere in the table
    clean = MEAN + a[user] + b[item] + np.einsum("nr,nr->n", p[user], q[item])
    values = clean + NOISE * rng.standard_normal(ratings)
    return Ratings(np.stack([user, users + item], 1), values.astype("f"), users, items, clean)


def _movielens(url: str | None) -> list[tuple[str, str, str]]:
    """User, item and rating of each line of u.data, which has tabs, and a time as well."""
    folder = download.fetch("movielens", url, source=about.MOVIELENS)
    with zipfile.ZipFile(folder / "ml-100k.zip") as archive:
        lines = archive.read("ml-100k/u.data").decode("ascii").splitlines()
    return [tuple(line.split("\t")[:3]) for line in lines]


def _csv(path: str) -> list[tuple[str, str, str]]:
    try:
        with open(path, newline="", encoding="utf-8") as file:
            reader = csv.reader(file)
            lines = [(reader.line_num, line) for line in reader][1:]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        fail(f"--data {path} cannot be read as CSV: {getattr(error, 'strerror', None) or error}")
    lines = [(number, line) for number, line in lines if line]
    for number, line in lines:
        if len(line) < 3:
            fail(f"--data {path}: line {number} needs three columns: user, item, rating")
    return [tuple(line[:3]) for _, line in lines]


def _numbered(lines: list[tuple[str, str, str]], source: str) -> Ratings:
    """Numbers users and items in the order of their names; shuffles once, with seed 0."""
    if len(lines) < 10:
        fail(f"--data {source}: needs at least ten ratings")
    users, items, values = zip(*lines)
    try:
        values = np.array(values, np.float32)
        if not np.isfinite(values).all():
            raise ValueError("a rating is not finite")
    except ValueError as error:
        fail(f"--data {source}: the third column must hold numbers ({error})")
    (users, user), (items, item) = (np.unique(each, return_inverse=True) for each in (users, items))
    order = np.random.default_rng(0).permutation(len(values))
    ids = np.stack([user, len(users) + item], 1)[order]
    return Ratings(ids, values[order], len(users), len(items))


def batches(flags, worker: int, workers: int):
    """A function that makes the tensors of a new batch of this worker's shard: ids [batch, 2],
    int64, and ratings [batch]."""
    if flags.batch_size == 0:
        fail("--batch_size 0: this example draws batches from shuffled ratings; give 1 or more")
    train = of(flags).part(test=False)
    if workers > len(train.values):
        fail(f"--workers {workers}: there are only {len(train.values)} ratings to train on")
    shard = train.ids[worker::workers], train.values[worker::workers]
    return data.batches(flags, worker, workers, examples=shard)


def test(flags) -> tuple[np.ndarray, np.ndarray]:
    """The test examples: ids and ratings."""
    part = of(flags).part(test=True)
    return part.ids, part.values


class Score(NamedTuple):
    """How well the test ratings are predicted.

    Attributes:
        rmse: less is better.
        auc: the probability that of two ratings, one above the mean and one not, the first is
            predicted higher.
    """

    rmse: float
    auc: float


class Controls(NamedTuple):
    """The scores of simpler predictions, and of the best one.

    Attributes:
        mean: the mean of all training ratings.
        biases: the mean, and a number for each user and each item.
        best: planted ratings without their noise; None for others.
    """

    mean: Score
    biases: Score
    best: Score | None


def controls(flags, prior: float = 1.0, rounds: int = 20) -> Controls:
    """Fits the simple predictions to the training ratings: least squares, by turns for users and
    items, where each bias also has `prior` ratings that are average."""
    ratings = of(flags)
    train, left = ratings.part(test=False), ratings.part(test=True)
    mean = train.values.mean(dtype=float)
    rows = ratings.users + ratings.items
    biases = np.zeros(rows)
    for _ in range(rounds):
        for column in (0, 1):
            mine, other = train.ids[:, column], train.ids[:, 1 - column]
            errors = train.values - mean - biases[other]
            total = np.bincount(mine, errors, rows)
            count = np.bincount(mine, minlength=rows)
            biases = np.where(count > 0, total / (count + prior), biases)
    predicted = mean + biases[left.ids].sum(1)
    return Controls(
        mean=_score(np.full(len(predicted), mean), left.values),
        biases=_score(predicted, left.values),
        best=None if left.clean is None else _score(left.clean, left.values),
    )


def _score(predicted: np.ndarray, values: np.ndarray) -> Score:
    from sklearn.metrics import roc_auc_score  # takes a second, and no worker needs it

    rmse = float(np.sqrt(np.square(values - predicted).mean()))
    return Score(rmse, float(roc_auc_score(values > values.mean(), predicted)))
