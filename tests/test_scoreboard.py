"""The scoreboard: how rates are tuned, and what is stored."""

import itertools
import json
import math
import os
import re
import subprocess
import sys
import threading
from types import SimpleNamespace

import linked
import numpy as np
import pytest
import schemes
import scoreboard
import simulate
from cluster import CALL, WIRE
from conftest import ROOT
from machine import seconds
from speeds import measured, speed_and_staleness
from test_link import needs_a_link
from watch import environment, eventually, first, processes
from watched_run import Run


def costs(best: int, high: int = 99):
    """A cost with its minimum at `best`; infinite from `high` on."""
    return lambda k: math.inf if k >= high else 10 + abs(k - best)


@pytest.mark.parametrize("begin", [4, 9, 15])
def test_the_search_ends_with_the_best_rate_inside(begin):
    found = scoreboard.search(begin, costs(8))
    assert min(found, key=found.get) == 8
    assert {7, 8, 9} <= found.keys() and min(found) < 8 < max(found)


def test_equally_good_rates_all_have_others_on_both_sides():
    found = scoreboard.search(12, lambda k: max(10, abs(k - 11.5) + 9))  # 10 at 11 and 12
    assert {10, 11, 12, 13} <= found.keys() and found[11] == found[12] == min(found.values())


def test_a_rate_at_which_nothing_is_learned_leads_to_a_lower_one():
    found = scoreboard.search(12, costs(6, high=7))
    assert min(found, key=found.get) == 6 and found[7] == math.inf and 5 in found


@pytest.mark.parametrize("cost", [costs(len(scoreboard.RATES) + 3), lambda k: math.inf])
def test_a_best_rate_at_the_end_of_the_grid_is_refused(cost):
    with pytest.raises(SystemExit, match="add more"):
        scoreboard.search(10, cost)


def test_the_loss_is_the_mean_over_the_last_fifth_of_the_time():
    looks = [(70.0, 5.0), (79.9, 4.0), (80.0, 3.0), (97.0, 2.0), (100.0, 1.0)]
    assert scoreboard.mean_loss(looks) == 2.0
    assert scoreboard.mean_loss(looks[:1]) == 5.0


def test_looking_costs_the_link_nothing_and_ends_at_the_target():
    flags = scoreboard.flags_of("HogWild", workers=2, mbit=100, rate=0.1, seed=10)
    options = simulate.options(**flags)
    cluster, _ = simulate.simulate(options, make_cluster=scoreboard.Watched)
    assert scoreboard.mean_loss(cluster.losses) <= scoreboard.TARGET
    assert cluster.reached == 0.9 * cluster.losses[-1][0] == 0.9 * cluster.env.now
    before = [scoreboard.mean_loss(cluster.losses[:n]) for n in range(1, len(cluster.losses))]
    assert min(before) > scoreboard.TARGET
    times = [at for at, _ in cluster.losses if at > 10]
    assert max(b / a for a, b in itertools.pairwise(times)) < 1.03
    # Each update has a pull and a push, and the two workers' last steps are under way.
    each = 4 * WIRE * (40 * 128 + 128 + 128 * 10 + 10) + CALL
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


def look(at: float, loss: float) -> list[float]:
    """A look at a run that makes 20 updates a second and sends 2 MB a second."""
    return [at, 20 * at, 2 * at, loss]


def test_the_target_is_reached_in_the_middle_of_a_window():
    """The loss falls by 0.02 a second, and is 1.2 after 42 s; looks are 2 % of the time apart."""
    times = 2 * 1.02 ** np.arange(190)
    points = [look(at, 1.2 + 0.02 * (42 - at)) for at in times]
    found = scoreboard.results(points)
    assert found["reached"] == pytest.approx([42, 840, 84], rel=0.01)
    assert found["after_seconds"] == pytest.approx(1.64, abs=0.005)
    assert found["after_megabytes"] == pytest.approx(1.94, abs=0.005)  # after 5 s
    for at, updates, sent, loss in found["curve"]:
        assert loss == pytest.approx(1.2 + 0.02 * (42 - at), abs=0.005)
        assert (updates, sent) == (pytest.approx(20 * at, abs=1), pytest.approx(2 * at, abs=0.02))
    # Noise of each look moves that by little; the first low look would come much earlier.
    random = np.random.default_rng(0)
    for point in points:
        point[3] += random.normal(0, 0.1)
    assert next(at for at, _, _, loss in points if loss <= 1.2) < 36
    assert scoreboard.results(points)["reached"][0] == pytest.approx(42, rel=0.05)


def test_what_was_seen_is_kept():
    """Each look of the last two thirds of the time, so that another estimate can be made of it."""
    found = scoreboard.results([look(at, 3.0) for at in range(1, 31)])
    assert found["looks"] == [[at, 20 * at, 2 * at, 3.0] for at in range(10, 31)]


def test_the_first_look_may_already_be_low_enough():
    assert scoreboard.results([look(2, 1.0), look(3, 0.9)])["reached"] == [1.8, 36, 3.6]
    assert scoreboard.results([look(2, 1.0)])["reached"] == [1.8, 36, 3.6]


def test_one_low_loss_is_not_enough():
    points = [look(at, 1.5) for at in np.arange(90, 100, 0.5)]
    points[-1][3] = 1.0
    assert scoreboard.results(points)["reached"] is None


def test_a_run_that_diverges_reaches_nothing_and_can_be_stored():
    found = scoreboard.results([look(1, 3.0), look(2, math.inf), look(3, math.nan)])
    assert found["reached"] is None and found["after_seconds"] is None
    assert [loss for *_, loss in found["curve"]] == [3.0, None, None]


def test_a_long_curve_is_thinned_out():
    found = scoreboard.results([look(at, 3.0) for at in range(1, 301)])
    assert 30 <= len(found["curve"]) <= 31


class Sending:
    """A run that sends 2 MB a second."""

    def __init__(self, workers: int = 8):
        self.flags = {"workers": workers}

    def megabytes(self, times):
        return [2 * at for at in times]


@pytest.mark.parametrize(
    ("looks", "over"),
    [([(10, 1.0)], False),  # too short
     ([(23, 1.0)], True),
     ([(23, 1.3)], False),  # not reached
     ([(23, 1.0), (30, 1.3)], True),  # reached before
     ([(401, 1.3)], True), ([(1, math.nan)], True)],
)  # fmt: skip
def test_when_a_run_ends(looks, over):
    assert scoreboard.is_enough(looks, Sending(), scoreboard.Goal()) == over


def test_too_few_bytes_are_not_enough():
    """Only with eight workers are schemes compared by their bytes."""
    goal = scoreboard.Goal(megabytes=50)
    assert not scoreboard.is_enough([(23, 1.0)], Sending(), goal)
    assert scoreboard.is_enough([(23, 1.0)], Sending(workers=4), goal)


def test_runs_share_the_processes(monkeypatch):
    """Never more than 24 at a time; all run, and those with more processes than that, too."""
    now, most, one, met = [0], [0], threading.Lock(), threading.Barrier(3, timeout=60)

    def real_run(scheme, workers, mbit, rate, seed, goal, stop, more):
        with one:
            now[0] += workers + 2
            most[0] = max(most[0], now[0])
        if workers == 6:
            met.wait()  # three of 8 processes run at the same time
        with one:
            now[0] -= workers + 2
        return {"seed": seed}

    monkeypatch.setattr(scoreboard, "real_run", real_run)
    found = []
    jobs = [("a", workers, 10, 0.1, k) for k, workers in enumerate([6, 6, 6, 1, 30, 2])]
    scoreboard.run_all(jobs, scoreboard.Goal(), lambda line: found.append(line["seed"]))
    assert sorted(found) == list(range(6)) and 24 <= most[0] <= 32


def test_a_small_run_does_not_overtake_a_large_one():
    """Else a run with many workers would wait until all others have been made."""
    places, order = scoreboard.Places(10), []

    def take(name: str, number: int) -> None:
        with places.taken(number):
            order.append(name)

    def waits(number: int) -> bool:
        return eventually(lambda: len(places._waiting) == number, 10)

    threads = [threading.Thread(target=take, args=(f"needs {n}", n)) for n in (8, 2)]
    with places.taken(6):
        for k, thread in enumerate(threads):
            thread.start()
            assert waits(k + 1)
        assert order == []  # although 4 are free
    for thread in threads:
        thread.join()
    assert order == ["needs 8", "needs 2"]


def test_a_run_that_fails_ends_the_others(monkeypatch):
    def real_run(scheme, workers, mbit, rate, seed, goal, stop, more):
        if seed == 1:
            raise SystemExit("it failed")
        assert stop.wait(60)

    monkeypatch.setattr(scoreboard, "real_run", real_run)
    jobs = [("a", 2, 10, 0.1, k) for k in range(20)]
    with pytest.raises(SystemExit, match="it failed"):
        scoreboard.run_all(jobs, scoreboard.Goal(), pytest.fail)


def test_one_process_is_run_once_and_not_over_each_link():
    found = scoreboard.settings([scoreboard.ALONE, "HogWild", "AGN"])
    assert found.count((scoreboard.ALONE, 1, 1000)) == 1 and len(found) == len(set(found)) == 25
    assert scoreboard.settings(["AGN"])[0] == ("AGN", 1, 1000)


def test_a_rate_that_is_not_known_is_named():
    with pytest.raises(SystemExit, match="HogWild, 2 workers, 10 Mbit/s"):
        scoreboard.best_rate({}, "HogWild", 2, 10)
    kept = {"tuned": {"HogWild, 1 workers, 1000 Mbit/s": [[0.1, 9.0], [0.2, 7.0], [0.4, None]]}}
    assert scoreboard.best_rate(kept, scoreboard.ALONE, 1, 1000) == 0.2


@needs_a_link
@pytest.mark.slow("real runs over a link")
def test_a_quick_scoreboard():
    """One process and two workers. They reach a loss of 2, and the instrument keeps nothing."""
    kept = scoreboard.FOUND.read_bytes(), scoreboard.lines()
    process = subprocess.run(
        ["bash", ROOT / "measure" / "start.sh", "scoreboard", "quick", "HogWild"],
        env=environment(), capture_output=True, text=True, timeout=seconds(240), check=False,
    )  # fmt: skip
    assert process.returncode == 0, process.stdout + process.stderr
    lines = sorted(line for line in process.stdout.splitlines() if "Mbit/s, seed 0: " in line)
    two, one = (re.findall(r"[\d.]+", line.partition(": ")[2]) for line in lines)
    assert lines[0].startswith("HogWild, 2 workers, 1000 Mbit/s")
    assert lines[1].startswith("One process, 1 workers")
    assert float(one[2]) == 0 and 0.05 * float(one[1]) <= float(one[0])
    # 59 kB travel for each update, headers and calls included. On a busy machine, some of the
    # updates may come before all have started, and the bytes are noted late.
    assert 0.068 > float(two[2]) / float(two[1]) > 0.032
    assert (scoreboard.FOUND.read_bytes(), scoreboard.lines()) == kept


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may raise a priority")
def test_a_process_that_began_with_less_priority_gets_the_usual_one():
    """With all its threads."""
    code = """
import os, threading
os.nice(19)
threading.Thread(target=input).start()
print("ready", flush=True)
"""
    command = [sys.executable, "-c", code, "these words"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                          env=environment()) as process:  # fmt: skip
        process.stdout.readline()

        def priorities() -> list[int]:
            threads = os.listdir(f"/proc/{process.pid}/task")
            return [os.getpriority(os.PRIO_PROCESS, int(thread)) for thread in threads]

        before = priorities()
        first("other words")
        unchanged = priorities()
        first("these words")
        after = priorities()
        process.communicate("\n")
    assert before == unchanged == [19, 19] and after == [0, 0]


def test_a_launch_is_read_once_its_line_is_complete(tmp_path):
    run = Run.__new__(Run)  # only what reads the file
    run._results = tmp_path
    assert run._launched() is None
    with open(tmp_path / "launches.jsonl", "a") as file:
        print('{"flags": ', end="", file=file, flush=True)
        assert run._launched() is None
        print('{"ps": 1}}', file=file, flush=True)
        assert run._launched() == {"flags": {"ps": 1}}


def test_what_saving_takes_one_process_does_not_count(tmp_path):
    """100 steps of 50 ms, 2 ms apart; after each tenth, it saves for 30 ms more."""
    run = Run.__new__(Run)  # only what looks at checkpoints
    run._results, run._kept, run._watch, run.began = tmp_path, tmp_path / "kept", None, 1000.0
    run._kept.mkdir()
    (tmp_path / "checkpoints").mkdir()
    end, lines = 1000.0, []
    for n in range(1, 101):
        end += 0.05
        step = {"time": end, "pull": 0.0, "compute": 0.049, "push": 0.001}
        lines.append(json.dumps(step) + "\n")
        end += 0.002
        if n % 10 == 0:
            end += 0.03
            for name in "data-00000-of-00001", "index":
                (tmp_path / "checkpoints" / f"model.ckpt-{n}.{name}").touch()
    (tmp_path / "events-worker-0.jsonl").write_text("".join(lines[:95]))  # so far
    made = run.snapshots()
    assert list(made) == list(range(10, 100, 10))
    assert list(made.values()) == pytest.approx([0.052 * n - 0.002 for n in made])


def test_a_watched_run_that_fails_leaves_nothing(tmp_path):
    before = len(processes())
    with pytest.raises(SystemExit, match="must be one of"), Run("HogWild", "--data", "nothing"):
        pass
    assert eventually(lambda: len(processes()) == before, 10)


def test_with_a_late_worker_each_scheme_has_its_own_rate_too(monkeypatch):
    """One of two seeds has a run that needs 40 s, others 10 s at a rate of 0.4, 20 s at others."""
    monkeypatch.setattr(scoreboard, "write", lambda *_, **__: None)
    monkeypatch.setattr(scoreboard.grid, "processes", lambda: Pool())

    class Pool:
        def map(self, _, runs):
            assert all(run["delay"] in (None, {7: 0.1}) and run["workers"] == 8 for run in runs)
            return [40 if run["seed"] == 3 else 10 if run["learning_rate"] == 0.4
                    else 20 if run["delay"] else 8 for run in runs]  # fmt: skip

    kept = {"tuned": {"HogWild, 8 workers, 100 Mbit/s": [[0.1, 9], [0.2, 8], [0.4, 9]]}}
    scoreboard.late(kept, ["HogWild"])
    rates = dict(kept["late"]["HogWild"]["rates"])
    assert rates == {0.1: 20, 0.2: 20, 0.4: 10, 0.8: 20}
    assert kept["late"]["HogWild"]["seconds"] == [10, 10, 10, 40, 10]
    assert kept["late"]["HogWild"]["equal"] == [8, 8, 8, 40, 8]  # at 0.2, the rate for these


def test_bytes_that_are_noted_late_are_waited_for(tmp_path):
    run, file = object.__new__(Run), tmp_path / "network.jsonl"
    run.flags, run._results, run.began = {"ps": 1}, tmp_path, 100.0
    run._run = SimpleNamespace(poll=lambda: None)

    def note(at: float, sent: float) -> None:
        with open(file, "a") as lines:
            lines.write(json.dumps({"time": at, "bytes": sent}) + "\n")

    note(99, 5e6), note(101, 7e6)
    late = threading.Timer(0.3, note, (103, 13e6))
    late.start()
    assert run.megabytes([1, 2]) == [1, 4]
    late.join()
    run._run.poll = lambda: 0  # over: no other line will come
    assert run.megabytes([1, 9]) == [1, 7]


def test_runs_that_push_often_need_more_of_the_machine():
    assert scoreboard.needed("HogWild", 8, 100) == 20
    assert scoreboard.needed("HogWild", 8, 10) == scoreboard.needed("AGN", 8, 1000) == 10
    assert scoreboard.needed(scoreboard.ALONE, 1, 1000) == 3


def test_every_stored_rate_is_the_best_of_a_grid_with_others_on_both_sides():
    tuned = scoreboard.read(scoreboard.FOUND)["tuned"]
    for scheme, workers, mbit in scoreboard.settings(scoreboard.FOLDERS):
        rates, costs = zip(*tuned[f"{scheme}, {workers} workers, {mbit} Mbit/s"])
        np.testing.assert_allclose(np.diff(np.log2(rates)), 1)
        best = scoreboard.best_rate({"tuned": tuned}, scheme, workers, mbit)
        assert rates[0] < best < rates[-1] and costs[rates.index(best)] < scoreboard.LONGEST


QUICK = {"latency": 0.001, "request": 0.0005}


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    ("scheme", "window", "mbit"),
    [("HogWild", 1, 1000), ("HogWild", 1, 10), ("AEASGD", 10, 10), ("Synchronous-SGD", 1, 10)],
)
def test_what_a_run_measures_is_enough_to_simulate_it(monkeypatch, scheme, window, mbit, late):
    """Here the run itself is simulated: four workers, which begin at different times."""
    monkeypatch.setattr(linked, "DELAY", {1: 0.1})
    starts = [0.0, 0.3, 0.1, 0.6]
    line = {"scheme": scheme, "workers": 4, "mbit": mbit, "rate": 0.1, "seed": 0, "late": late,
            "reached": [90, 800.4, 40], "cluster": {"compute": 0.05, "starts": starts}}  # fmt: skip
    _, written = linked.simulated(line, QUICK)
    line["cluster"] = measured(written, scheme, window)
    assert line["cluster"]["compute"] == pytest.approx(0.05, rel=0.01)
    if mbit == 1000 and not late:  # over a full link, they do not stay so far apart
        np.testing.assert_allclose(line["cluster"]["starts"], starts, atol=0.02)
    row = linked.beside(line, QUICK)
    assert row["real"] == [*line["cluster"]["real"], 800] and row["late"] is late
    (speed, stale), (guess, guessed) = row["real"][:2], row["simulated"][:2]
    assert guess == pytest.approx(speed, rel=0.05)
    assert guessed == pytest.approx(stale, rel=0.1, abs=0.4)  # who meets on the link is chance
    cluster, _ = linked.simulated(line, QUICK)
    assert 0.85 * cluster.updates < row["simulated"][2] <= 0.92 * cluster.updates


def test_a_speed_is_taken_from_whole_rounds():
    """Two workers need 1 s a round, one 4 s; a run may end anywhere, even before an update."""

    def rounds(seconds, until):
        return [{"time": seconds * k, "examples": 8, "staleness": 2}
                for k in range(int(until / seconds) + 1)]  # fmt: skip

    for until in (16, 17.5, 19.9):
        events = [rounds(1, until), rounds(1, until), rounds(4, until)]
        assert speed_and_staleness(events) == (pytest.approx(18), 2)
    assert speed_and_staleness([rounds(1, 9), rounds(1, 0)]) == (pytest.approx(8), 2)


def test_the_times_of_a_message_and_of_a_request_are_found():
    """From runs that are simulated with 3 ms and 2 ms: one without computing, one with a worker."""
    times = {"latency": 0.003, "request": 0.002}
    line = {"scheme": "HogWild", "mbit": 1000, "rate": 0.1, "seed": 0, "late": False}
    for workers, compute in ((8, 0.0001), (1, 0.05)):
        line |= {"workers": workers, "cluster": {"compute": compute, "starts": [0.0] * workers}}
        _, written = linked.simulated(line, times)
        line["cluster"] = measured(written, "HogWild", 1)
        if workers == 8:
            assert linked.request(line) == pytest.approx(0.002, rel=0.05)
    assert linked.latency([line], 0.002) == pytest.approx(0.003, rel=0.05)
