"""The stored runs of Published-Results: complete, tuned inside their grids, and repeatable."""

import itertools
import json
import statistics

import published
import pytest
from conftest import ROOT

STORED = json.loads((ROOT / "measure" / "published.json").read_text())
SIDES = [(name, side) for name, each in published.EXPERIMENTS.items() for side in each.sides]


def test_every_side_has_its_runs():
    assert {(name, side) for name, found in STORED.items() for side in found} == set(SIDES)
    for name, side in SIDES:
        found, experiment = STORED[name][side], published.EXPERIMENTS[name]
        assert len(found["values"]) == len(published.SEEDS) == 5
        assert ("same" in found) == (experiment.same is not None)
    assert not set(published.SEEDS) & set(published.TUNING_SEEDS)


@pytest.mark.parametrize(("name", "side"), SIDES)
def test_the_best_rate_is_inside_its_grid(name, side):
    """Each rate is twice the one before; the lowest cost has a higher one on both sides. Elastic
    averaging with a strong force may not learn at any rate."""
    if STORED[name][side]["rate"] is None:
        assert "alpha = 0.5" in side and STORED[name][side]["values"] == [None] * 5
        return
    rates, costs = zip(*STORED[name][side]["grid"])
    assert all(b == pytest.approx(2 * a) for a, b in itertools.pairwise(rates))
    costs = [float("inf") if cost is None else cost for cost in costs]
    best = costs[rates.index(STORED[name][side]["rate"])]  # another one may be as good
    assert costs[0] > best == min(costs) < costs[-1]


@pytest.mark.parametrize(
    ("name", "side"), [("belief", "Adagrad, n = 50"), ("local", "H = 16, K = 16")]
)
def test_a_stored_run_is_what_the_code_does(name, side):
    """Up to how another processor rounds."""
    experiment, found = published.EXPERIMENTS[name], STORED[name][side]
    flags = {**experiment.sides[side], "learning_rate": found["rate"]}
    now = [published.cost({**flags, "seed": seed}, experiment.batches, experiment.target)
           for seed in (0, 1)]  # fmt: skip
    assert statistics.mean(now) == pytest.approx(statistics.mean(found["values"][:2]), rel=0.2)


def test_the_cost_of_a_run_that_breaks_is_infinite():
    flags = {"scheme": "HogWild", "workers": 4, "learning_rate": 1e6, "seed": 0}
    assert published.cost(flags, 200, None) == float("inf")
    assert published.cost(flags | {"learning_rate": 0.1}, 200, None) < 3
    assert published.cost(flags | {"learning_rate": 0.1}, 200, 0.01) == float("inf")  # not reached
