"""The instrument behind the tables over a slow link: its grids, its curves, and what it stored."""

import json
import math
import time

import numpy as np
import pytest
import slow_link
from test_link import needs_a_link

KEPT = json.loads(slow_link.FOUND.read_text())


@pytest.mark.parametrize("best", [-3, 0, 2])
def test_the_grid_grows_until_its_best_rate_is_inside(best, capsys):
    """A loss with its minimum at 2^best times the middle; infinite from four times that rate on."""
    middle = slow_link.SCHEMES["DiLoCo"][2]

    def cost(flags):
        k = math.log2(flags[1] / middle)
        return math.inf if k > best + 1.5 else 3 + abs(k - best)

    found = slow_link.grid("DiLoCo", cost)
    rates = [rate for rate, _ in found]
    np.testing.assert_allclose(np.diff(np.log2(rates)), 1)
    chosen = slow_link.best_rate({"DiLoCo": found}, "DiLoCo")
    assert chosen == middle * 2.0**best and rates[0] < chosen < rates[-1]
    assert all((value is None) == (rate > chosen * 2) for rate, value in found)


def test_an_unknown_rate_is_no_rate():
    with pytest.raises(SystemExit, match="first run `slow_link tune HogWild`"):
        slow_link.best_rate({}, "HogWild")


def test_when_a_loss_is_reached_and_how_a_run_ends():
    curve = [[1.0, 2, 0.5, 8.0], [2.0, 4, 1.0, 3.0], [3.0, 6, 1.5, 3.2], [4.0, 8, 2.0, 2.9]]
    made = {"curve": curve, "diverged": False}
    assert slow_link.reached(made, 3.1) == curve[1]
    assert slow_link.reached(made, 2.0) is None
    assert slow_link.final(made) == 2.9
    assert slow_link.final(made | {"diverged": True}) == math.inf
    assert slow_link.final(made | {"curve": [*curve, [5.0, 10, 2.5, math.nan]]}) == math.inf
    assert slow_link.spread([3.0, 1.0, 2.0], ".1f") == "2.0 (1.0 to 3.0)"


@pytest.mark.parametrize("kind", ["tuning", "target_tuning"])
def test_every_stored_optimum_is_inside_its_grid(kind):
    for name, found in KEPT[kind].items():
        rates = [rate for rate, _ in found]
        np.testing.assert_allclose(np.diff(np.log2(rates)), 1)
        assert rates[0] < slow_link.best_rate(KEPT[kind], name) < rates[-1], name


def test_the_race_is_run_as_tuned_with_every_seed():
    assert set(KEPT["race"]) == set(KEPT["tuning"]) == set(slow_link.SCHEMES)
    for name, runs in KEPT["race"].items():
        assert set(runs) == {str(seed) for seed in slow_link.SEEDS}
        for seed, made in runs.items():
            flags = made["flags"]
            assert flags["learning_rate"] == slow_link.best_rate(KEPT["tuning"], name)
            link = None if name in slow_link.ALONE else 10
            assert (flags["seed"], flags["link_mbit"], flags["model"]) == (int(seed), link, "gpt")
            assert not set(flags) & set(slow_link.PLACES)
            seconds, updates, sent, losses = np.array(made["curve"]).T
            assert seconds[-1] > 0.9 * slow_link.SECONDS and (np.diff(updates) >= 0).all()
            assert len(seconds) >= 50 and np.diff(seconds).max() < 10
            assert name in slow_link.ALONE or losses[0] > 6
            assert name in slow_link.ALONE or sent[-1] * 8 / seconds[-1] < 1.05 * 10


def test_what_the_pages_say_about_the_race():
    """README, QUESTIONS and Sign-SGD's README; the notebook has assertions of its own."""
    ends = {name: [slow_link.final(made) for made in runs.values()]
            for name, runs in KEPT["race"].items()}  # fmt: skip
    plain, adamw = (ends.pop(name) for name in slow_link.ALONE)
    assert max(adamw) < min(loss for losses in [plain, *ends.values()] for loss in losses)
    middle = {name: sorted(losses)[1] for name, losses in ends.items()}
    assert set(sorted(middle, key=middle.__getitem__)[:2]) == {"Sign-SGD", "DiLoCo"}
    assert abs(middle["Sign-SGD"] - middle["DiLoCo"]) < 0.1
    for better, worse in [("DOWNPOUR-Easy", "HogWild"), ("Local-SGD", "Synchronous-SGD"),
                          ("SlowMo", "Local-SGD"), ("DiLoCo", "SlowMo")]:  # fmt: skip
        assert max(ends[better]) < min(ends[worse])


@needs_a_link
@pytest.mark.slow("20 seconds over a slow link")
def test_snapshots_of_a_real_run():
    """They begin with the start, follow the updates, and no worker makes them."""
    with slow_link.run_of("DiLoCo", "--link_mbit", 50, "--learning_rate", 0.004) as made:
        while len(made.snapshots()) < 12 or len(made.step()) < 2:
            assert not made.over()
            time.sleep(0.1)  # only to look again
        seconds, updates, sent, losses = np.array(made.curve()).T
        steps = made.step()
    assert 7.5 < losses[0] < 8.5 and losses[-1] < losses[0] - 1
    assert (np.diff(seconds) > 0.5).all() and (np.diff(updates) >= 0).all() and updates[-1] > 2
    assert (np.diff(sent) >= 0).all() and sent[-1] * 8 / seconds[-1] < 1.05 * 50
    assert len(steps) == 2 and min(steps) > 0
