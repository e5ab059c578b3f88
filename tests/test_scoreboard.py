"""The scoreboard: how rates are tuned, and what is stored."""

import itertools
import math

import pytest
import schemes
import scoreboard
import simulate
from cluster import WIRE


def costs(best: int, high: int = 99):
    """A cost with its minimum at `best`; infinite from `high` on."""
    return lambda k: math.inf if k >= high else 10 + abs(k - best)


@pytest.mark.parametrize("begin", [4, 9, 15])
def test_the_search_ends_with_the_best_rate_inside(begin):
    found = scoreboard.search(begin, costs(8))
    assert min(found, key=found.get) == 8
    assert {7, 8, 9} <= found.keys() and min(found) < 8 < max(found)


def test_a_rate_at_which_nothing_is_learned_leads_to_a_lower_one():
    found = scoreboard.search(12, costs(6, high=7))
    assert min(found, key=found.get) == 6 and found[7] == math.inf and 5 in found


@pytest.mark.parametrize("cost", [costs(len(scoreboard.RATES) + 3), lambda k: math.inf])
def test_a_best_rate_at_the_end_of_the_grid_is_refused(cost):
    with pytest.raises(SystemExit, match="add more"):
        scoreboard.search(10, cost)


def test_the_loss_is_the_mean_over_the_last_twentieth_of_the_time():
    looks = [(90.0, 5.0), (94.9, 4.0), (95.0, 3.0), (97.0, 2.0), (100.0, 1.0)]
    assert scoreboard.mean_loss(looks) == 2.0
    assert scoreboard.mean_loss(looks[:1]) == 5.0


def test_looking_costs_the_link_nothing_and_ends_at_the_target():
    flags = scoreboard.flags_of("HogWild", workers=2, mbit=100, rate=0.1, seed=10)
    options = simulate.options(**flags)
    cluster, _ = simulate.simulate(options, make_cluster=scoreboard.Watched)
    assert scoreboard.mean_loss(cluster.losses) <= scoreboard.TARGET
    assert cluster.reached == cluster.losses[-1][0] == cluster.env.now
    before = [scoreboard.mean_loss(cluster.losses[:n]) for n in range(1, len(cluster.losses))]
    assert min(before) > scoreboard.TARGET
    times = [at for at, _ in cluster.losses if at > 10]
    assert max(b / a for a, b in itertools.pairwise(times)) < 1.03
    # Each update has a pull and a push, and the two workers' last steps are under way.
    each = 4 * WIRE * (40 * 128 + 128 + 128 * 10 + 10)
    (link,) = cluster.down
    assert 0 <= link.total_bytes / each - 2 * cluster.updates <= 4


def test_a_rate_that_is_too_high_never_reaches_it():
    flags = scoreboard.flags_of("HogWild", workers=8, mbit=1000, rate=6.4, seed=10)
    assert scoreboard.seconds_to_target(flags) == math.inf


def test_every_scheme_has_its_window():
    for name, scheme in schemes.SCHEMES.items():
        flags = scoreboard.flags_of(name, workers=1, mbit=10, rate=0.1, seed=0)
        assert ("window" in scheme.defaults) == (flags.get("window") == scoreboard.WINDOW)
        assert simulate.options(**flags).batch_size == 8
