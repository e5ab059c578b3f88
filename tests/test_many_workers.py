"""The simulation: its mathematics, its clock, its command and what it leaves.

`test_replay.py` compares it with real runs of every scheme.
"""

import collections
import itertools
import json
import math
import os
import signal
import subprocess
import sys
import tracemalloc

import formulas
import grid
import journal
import learning
import linked
import matplotlib.pyplot as plt
import numpy as np
import panels
import pytest
import scoreboard
import simpy
import simulate
from cluster import Link, transfer_seconds
from conftest import ROOT, environment, eventually, processes
from schemes import SCHEMES
from toys import InTurn, Parabola, Sparse

from common.record import trace
from common.told.example import example_of, main_script

FOLDER = ROOT / "Many-Workers"
INSTANT = {"latency": 0, "spread": 0, "plain": True}


def simulated(scheme="HogWild", **flags):
    """The cluster and the journal of a run with these flags, and no files."""
    return simulate.run(scheme=scheme, **flags)


# The mathematics.


def test_the_two_schemes_that_have_no_folder():
    """Written out: staleness-aware, two updates; plain DOWNPOUR, a window of two."""
    flags = simulate.options(scheme="Staleness-Aware", learning_rate=0.3, workers=2, model="none")
    scheme = SCHEMES["Staleness-Aware"](flags, lambda k, w: 2 * w, 1.0)
    assert scheme.update(5.0, scheme.contribution(0, 1.0), 0, 1.0) == pytest.approx(5 - 0.3 * 2)
    assert scheme.update(5.0, scheme.contribution(0, 1.0), 3, 1.0) == pytest.approx(5 - 0.1 * 2)
    flags = simulate.options(scheme="Plain-DOWNPOUR", learning_rate=0.3, window=2, model="none")
    scheme = SCHEMES["Plain-DOWNPOUR"](flags, lambda k, w: 2 * w, 1.0)
    total = 2 + 2 * (1 - 0.3 * 2)
    assert scheme.contribution(0, 1.0) == pytest.approx(total)
    assert scheme.update(5.0, total, 7, 1.0) == pytest.approx(5 - 0.3 * total)


@pytest.mark.parametrize("name", [name for name in SCHEMES if name in formulas.FOLDERS])
def test_a_scheme_has_the_defaults_of_its_folder(name):
    """Rate, window and so on. That real runs follow its formula: test_replay.py."""
    assert formulas.of(name).scheme == name
    defaults, _ = example_of(main_script(ROOT / name))
    own = SCHEMES[name].defaults
    assert own == {key: defaults[key] for key in own}


@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_the_gradient_is_the_derivative_of_the_loss(model):
    flags = simulate.options(model=model, hidden=7, workers=3)
    problem = learning.Problem(flags)
    problem.batches = [iter([np.arange(40)] * 1000)]
    w = problem.initial().astype(float) + np.random.default_rng(1).normal(0, 0.1, problem.size)
    found = problem.gradient(0, w)
    for i in np.random.default_rng(2).choice(problem.size, 30, replace=False):
        losses = []
        for sign in (1, -1):
            moved = w.copy()
            moved[i] += sign * 1e-5
            problem.gradient(0, moved)
            losses.append(problem.loss[0])
        assert (losses[0] - losses[1]) / 2e-5 == pytest.approx(found[i], abs=1e-7)


def test_workers_have_disjoint_shards():
    """Worker k's batches hold the examples k, k + n, ..., each once in an epoch."""
    problem = learning.Problem(simulate.options(workers=4, batch_size=10))
    drawn = [np.concatenate([next(problem.batches[k]) for _ in range(40)]) for k in range(4)]
    for k, indices in enumerate(drawn):
        size = len(range(k, 1437, 4))
        assert sorted(indices[:size]) == list(range(k, 1437, 4))
        assert list(indices[:size]) != sorted(indices[:size])


@pytest.mark.parametrize("staleness", [0, 1, 3, 10, 30])
def test_the_largest_stable_rate(staleness):
    """x <- x - eta h x(t - s) is stable below eta h = 2 sin(pi / (2 (2 s + 1))): within 2 %."""
    limit = 2 * math.sin(math.pi / (2 * (2 * staleness + 1)))
    ends = []
    for factor in (0.98, 1.02):
        flags = simulate.options(scheme="HogWild", workers=staleness + 1, model="none", **INSTANT,
                                      steps=30 * (staleness + 1) ** 2 + 2500,
                                      learning_rate=factor * limit)  # fmt: skip
        cluster, journal = simulate.simulate(flags, problem=Parabola(flags), make_cluster=InTurn)
        later = {s: n for s, n in journal.staleness.items() if s != staleness}
        assert sum(later.values()) <= staleness  # constant but for the first round
        ends.append(abs(cluster.w))
    assert ends[0] < 1e-2 and ends[1] > 1e2


# The clock.


def test_times_without_a_network():
    """n workers make n updates in the time of a mini-batch; synchronous ones make one."""
    for scheme, updates in (("HogWild", 40), ("Synchronous-SGD", 10)):
        _, journal = simulated(scheme=scheme, workers=4, compute=0.5, steps=updates,
                               learning_rate=0.05, **INSTANT)  # fmt: skip
        assert journal.time == pytest.approx(10 * 0.5)
        assert journal.steps == [10, 10, 10, 10]


def test_a_link_is_the_limit():
    """Two transfers per step share the link of the ps, header bytes included. With --duplex each
    has one of its own, and with two ps, twice the bytes pass."""
    from cluster import WIRE

    flags = {"workers": 8, "compute": 0.001, "steps": 4000, "model": "none", "latency": 0,
             "parameters": 100_000, "link_mbit": 100}  # fmt: skip
    one_way = 400_000 * WIRE * 8e-6 / 100
    for more, seconds in (({}, 2 * one_way), ({"duplex": True}, one_way), ({"ps": 2}, one_way)):
        _, journal = simulated(**flags, **more)
        assert journal.time / 4000 == pytest.approx(seconds, rel=0.03)  # with evaluations
    cluster, journal = simulated(
        scheme="HogWild", **flags, worker_mbit=10
    )  # then the workers' links are the limit
    assert journal.time / 4000 == pytest.approx(2 * one_way * 10 / 8, rel=0.02)
    assert journal.summary(cluster)["link_use"] == pytest.approx(0.8, rel=0.02)


def test_a_ps_that_needs_time_is_the_limit():
    _, journal = simulated(workers=10, compute=0.001, update=0.01, steps=1000, model="none",
                           **INSTANT)  # fmt: skip
    assert journal.time == pytest.approx(10, rel=0.01)
    assert journal.staleness[9] > 900  # everybody waits in the same queue


def test_a_ps_that_needs_time_for_requests_is_the_limit():
    """Ten workers, each step a pull and a push."""
    flags = {"workers": 10, "compute": 0.001, "request": 0.01, "steps": 1000, "model": "none"}
    _, journal = simulated(**flags, **INSTANT)
    assert journal.time == pytest.approx(20, rel=0.01)
    _, journal = simulated(**flags, update=0.01, **INSTANT)
    assert journal.time == pytest.approx(30, rel=0.01)


def test_two_ps_share_the_work_of_an_update():
    _, journal = simulated(workers=10, compute=0.001, update=0.01, steps=1000, model="none", ps=2,
                           **INSTANT)  # fmt: skip
    assert journal.time == pytest.approx(5, rel=0.01)


@pytest.mark.parametrize(("transfer", "step"), [(0.1, 0.2 + 0.1 + 0.1), (0.3, 0.3 + 0.1 + 0.3)])
def test_a_late_batch_is_on_its_way_while_the_pull_travels(transfer, step):
    """As in a real run. The batch comes after 0.2 s."""
    size = round(transfer / transfer_seconds(1, 100))
    _, journal = simulated(workers=1, compute=0.1, delay="0:0.2", link_mbit=100, parameters=size,
                           steps=100, model="none", **INSTANT)  # fmt: skip
    assert journal.time / 100 == pytest.approx(step, rel=0.01)


def test_a_straggler_delays_synchronous_workers_only():
    flags = {"workers": 4, "compute": 0.1, "delay": "3:0.3", "steps": 60, "learning_rate": 0.05}
    _, waiting = simulated(scheme="Synchronous-SGD", **flags, **INSTANT)
    assert waiting.time == pytest.approx(60 * 0.4)
    _, backup = simulated(scheme="Synchronous-SGD", backup_workers=1, **flags, **INSTANT)
    assert backup.time == pytest.approx(60 * 0.1)
    # Worker 3 finishes 15 gradients. Each belongs to a round that is over.
    assert backup.contributed == [60, 60, 60, 0] and backup.dropped[3] in (14, 15)
    _, free = simulated(**flags, **INSTANT)
    assert free.steps[3] == pytest.approx(free.steps[0] / 4, abs=1)


@pytest.mark.parametrize(("transfer", "cycle"), [(0.05, 1.0), (0.3, 1.2), (0.6, 1.5)])
def test_an_elastic_workers_first_gradient_does_not_wait_for_the_pull(transfer, cycle):
    """Ten mini-batches of 0.1 s. As in real runs of AEASGD over a slow link, where a worker was
    found to compute nine of ten after the pull."""
    from cluster import CALL, WIRE

    mbit = (4 * WIRE * 10_000 + CALL) * 8e-6 / transfer
    _, journal = simulated(scheme="AEASGD", workers=1, compute=0.1, spread=0, latency=0, steps=101,
                           window=10, model="none", parameters=10_000, link_mbit=mbit)  # fmt: skip
    assert journal.time == pytest.approx(100 * cycle + 2 * transfer)


def test_an_elastic_push_does_not_wait_for_the_local_steps():
    """So its staleness counts only what comes during the two transfers."""
    flags = {"workers": 10, "window": 10, "steps": 500, "spread": 0.3}
    _, elastic = simulated(scheme="AEASGD", **flags)
    _, other = simulated(scheme="AGN", **flags)
    means = [sum(s * n for s, n in j.staleness.items()) / 500 for j in (elastic, other)]
    assert means[0] < 1 and means[1] > 8
    assert elastic.time == pytest.approx(other.time, rel=0.05)


def test_times_vary_as_told():
    """The mean and the standard deviation of the time per mini-batch."""
    _, journal = simulated(workers=1, compute=0.2, spread=0.5, steps=4000, model="none", latency=0,
                           plain=True)  # fmt: skip
    assert journal.time / 4000 == pytest.approx(0.2, rel=0.05)
    seen = []
    flags = simulate.options(workers=1, compute=0.2, spread=0.5, model="none", window=4,
                                  scheme="AGN", steps=3000)  # fmt: skip

    class Noted(simulate.Cluster):
        def computing(self, k):
            event = super().computing(k)
            seen.append(self.computed[k] - self.env.now)
            return event

    simulate.simulate(flags, make_cluster=Noted)
    assert np.mean(seen) == pytest.approx(0.8, rel=0.05)  # four mini-batches
    assert np.std(seen) == pytest.approx(0.2 * 0.5 * 2, rel=0.1)  # independent of each other


def test_the_same_flags_give_the_same_run():
    ends = [simulated(workers=7, steps=300, learning_rate=0.05, seed=s)[0].w for s in (1, 1, 2)]
    assert np.array_equal(ends[0], ends[1]) and not np.array_equal(ends[0], ends[2])


def test_memory_does_not_grow_with_the_number_of_updates(tmp_path, monkeypatch):
    """Pictures included."""
    monkeypatch.setattr(journal, "LINES", 250)
    flags = ["--scheme", "HogWild", "--workers", "4", "--model", "none", "--compute", "0.01"]
    peaks = []
    for steps in (20, 2000, 6000):  # the first one imports what draws
        where = tmp_path / str(steps)
        tracemalloc.start()
        simulate.main([*flags, "--steps", str(steps), "--results", str(where), "--plain"])
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    events = trace.read_events(where, 4)
    assert peaks[2] < 1.2 * peaks[1] and all(200 < len(mine) < 350 for mine in events)
    assert (where / "curves.png").exists()
    gaps = {b["local_step"] - a["local_step"] for a, b in itertools.pairwise(events[0])}
    assert gaps == {1, 5 * 40 + 1}  # 40 consecutive steps of every 240


def test_a_link_serves_who_comes_first():
    """A link of 1 MB/s. A message waits for at most 128 kB of each transfer before it."""
    env, passed = simpy.Environment(), []
    link = Link(env, 8)
    for name, count in (("large", 400_000), ("small", 20_000), ("later", 300_000)):
        link.send(count, lambda name=name: passed.append((name, env.now)))
    assert link.delay() == pytest.approx((2 * 2 * 65_536 + 20_000 + 300) * 1e-6)
    env.run(until=0.35)
    assert link.delay() == pytest.approx(0.05 + (2 * 65_536 + 20_000 + 300) * 1e-6)
    env.run()
    names, times = zip(*passed)
    assert names == ("large", "small", "later")
    assert times == pytest.approx([0.4, 0.42, 0.72])
    assert link.delay() == 0 and link.total_bytes == 720_000


# Here a worker of the real run has paused. The others wait for it ever after; the README says so.
PAUSED = "Stale-Synchronous-Parallel", 1000, False


def test_real_runs_over_slow_links_are_as_simulated():
    """Eight workers, also with one late: speed within 5 %, the mean staleness within 10 %, or 0.6
    updates. `measure/linked.py` made and simulated the runs."""
    rows = json.loads((ROOT / "measure" / "linked.json").read_text())["speed"]["rows"]
    made = [(row["scheme"], row["mbit"], row["late"]) for row in rows]
    assert sorted(made) == sorted(itertools.product(linked.SCHEMES, linked.LINKS, (False, True)))
    for row in rows:
        (speed, stale, _), (guess, guessed, _) = row["real"], row["simulated"]
        paused = (row["scheme"], row["mbit"], row["late"]) == PAUSED
        assert guess == pytest.approx(speed, rel=0.1 if paused else 0.05), row
        assert guessed == pytest.approx(stale, rel=0.1, abs=2 if paused else 0.6), row


def test_real_and_simulated_runs_need_as_many_updates():
    """The scoreboard's runs with eight workers: the ranges of the seeds meet, within 3 %."""
    found = collections.defaultdict(list)
    for row in json.loads((ROOT / "measure" / "linked.json").read_text())["updates"]["rows"]:
        found[row["scheme"], row["mbit"]].append(row)
    assert {len(rows) for rows in found.values()} == {len(scoreboard.SEEDS)}
    assert {mbit for _, mbit in found} == set(linked.LINKS) and len(found) > 40
    for setting, rows in found.items():
        (least, most), (fewest, highest) = linked.ranges(rows)
        assert least <= 1.03 * highest and fewest <= 1.03 * most, setting


# The command.


def test_options_take_python_values():
    given = simulate.options(duplex=False, plain=True, delay={2: 0.5}, seed=None,
                             scheme="Synchronous-SGD-different-learning-rates", workers=3,
                             learning_rates=[0.1, 0.2, 0.3])  # fmt: skip
    assert given.duplex is False and given.plain is True and given.delay == {2: 0.5}
    assert given.learning_rates == [0.1, 0.2, 0.3] and given.seed == simulate.options().seed


def test_a_measured_time_leaves_the_options_alone():
    options = simulate.options(compute=0, workers=1, steps=3, spread=0, latency=0)
    cluster, journal = simulate.simulate(options)
    assert options.compute == 0 and cluster.flags.compute > 0
    assert journal.time == pytest.approx(3 * cluster.flags.window * cluster.flags.compute)


def command(*flags, python_path: str = "", cwd=ROOT) -> subprocess.CompletedProcess:
    env = environment() | {"PYTHONPATH": python_path}
    return subprocess.run(["bash", str(FOLDER / "run.sh"), *map(str, flags)], env=env, cwd=cwd,
                          capture_output=True, text=True, timeout=300)  # fmt: skip


@pytest.mark.parametrize("scheme", ["AGN", "Synchronous-SGD"])
def test_it_leaves_what_a_real_run_leaves(scheme, tmp_path, default_run):
    """The same keys and arrays, without importing TensorFlow."""
    (tmp_path / "tensorflow.py").write_text("raise SystemExit('TensorFlow was imported')")
    where = tmp_path / "results"
    done = command("--scheme", scheme, "--workers", 3, "--steps", 100, "--hidden", 128,
                   "--results", where, python_path=str(tmp_path))  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    real = default_run(scheme)
    mine = json.loads((where / "summary.json").read_text())
    theirs = real.summary
    assert mine.keys() == theirs.keys()
    assert mine["staleness"].keys() == theirs["staleness"].keys()
    assert [t["job"] for t in mine["tasks"]] == ["ps", "worker", "worker", "worker"]
    assert mine["tasks"][1].keys() == theirs["tasks"][1].keys()
    assert mine["examples"] == sum(task["examples"] for task in mine["tasks"])
    assert mine["global_step"] == 100 and mine["test_accuracy"] > 0.8
    with np.load(where / "parameters.npz") as arrays:
        shapes = [arrays[name].shape for name in arrays.files]
    assert shapes == [array.shape for array in real.parameters]
    for name in ("events-worker-2.jsonl", "evaluations.jsonl"):
        line = json.loads((where / name).read_text().splitlines()[-1])
        theirs = (real.results / name.replace("2", "1")).read_text().splitlines()[-1]
        assert line.keys() >= json.loads(theirs).keys() - {"counted"}
    assert (where / "updates.jsonl").exists() == (scheme == "Synchronous-SGD")
    assert (where / "curves.png").stat().st_size > 20_000
    assert f"test accuracy {mine['test_accuracy']:.2%}" in done.stdout
    assert "all times are simulated" in done.stdout


def test_it_stops_at_the_target():
    cluster, journal = simulated(scheme="AGN", workers=4, steps=4000, target_accuracy=0.9)
    assert journal.evaluations[-1]["test_accuracy"] >= 0.9 and cluster.updates < 4000


def test_a_run_without_gradients(tmp_path):
    where = tmp_path / "results"
    done = command("--scheme", "HogWild", "--model", "none", "--workers", 300, "--steps", 3000,
                   "--results", where)  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads((where / "summary.json").read_text())
    assert "test_accuracy" not in found and not (where / "parameters.npz").exists()
    assert len(found["tasks"]) == 301 and found["staleness"]["mean"] > 200
    assert (where / "curves.png").stat().st_size > 10_000
    assert "accuracy" not in done.stdout and "8 of 300 workers" in done.stdout


WRONG = {
    "--scheme SGD": ("--scheme", "one of HogWild"),
    "--scheme HogWild --window 5": ("unknown argument --window",),
    "--scheme AGN --window 0": ("--window", "1 or more"),
    "--workers 2000": ("--workers 2000", "only 1437 examples"),
    "--model cnn": ("--model", "linear, mlp, none"),
    "--ps 0": ("--ps", "1 or more"),
    "--compute -1": ("--compute", "0 or more"),
    "--spread x": ("--spread", "0 or more"),
    "--delay 20:1": ("--delay", "the last worker is 19"),
    "--timeout 5": ("unknown argument --timeout",),
    "--scheme Synchronous-SGD --backup_workers 20": ("--backup_workers", "below --workers"),
    "--model none --batch_size 0": ("--batch_size 0", "no data"),
    "--model none --compute 0": ("--compute 0", "no gradient"),
    "--data no.npz": ("--data", "there is no file"),
}


@pytest.mark.parametrize("flags", WRONG)
def test_a_wrong_flag_is_one_clear_sentence(flags, tmp_path, capsys):
    """In this process. The whole command: the two tests below."""
    where = tmp_path / "results"
    with pytest.raises(SystemExit) as ended:
        simulate.main([*flags.split(), "--results", str(where)])
    (line,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2 and line.startswith("error: ")
    assert all(part in line for part in WRONG[flags]), line
    assert not where.exists()


def test_a_rate_that_diverges_is_one_clear_sentence(tmp_path):
    where = tmp_path / "results"
    done = command("--learning_rate", 1e9, "--steps", 200, "--results", where)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2 and line.startswith("error: the loss on the test set is NaN or ")
    assert "--learning_rate below 1e+09" in line
    assert not where.exists()


@pytest.mark.filterwarnings("error")
def test_huge_parameters_are_evaluated_without_a_warning():
    options = simulate.options(steps=1)
    problem = learning.Problem(options)
    problem.initial = lambda: np.full(problem.size, 1e30, np.float32)
    problem.gradient = lambda k, w: np.zeros_like(w)
    simulate.simulate(options, problem=problem)


def test_a_used_results_folder_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("precious")
    done = command("--results", tmp_path)
    assert done.returncode == 2 and "already holds thesis.txt" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_help_lists_the_flags_of_the_scheme():
    text = command("--scheme", "AEAMSGD", "--help").stdout
    assert "--momentum" in text and "--moving_rate" in text and "--backup_workers" not in text
    assert os.environ.get("COLUMNS") or max(map(len, text.splitlines())) < 200


# What the notebooks use.


def test_a_grid_of_runs_is_the_same_as_one_after_the_other():
    settings = [{"scheme": "AGN", "workers": n, "steps": 30} for n in (1, 2, 5)]
    found = grid.measure_all(settings)
    for setting, mine in zip(settings, found):
        cluster, journal = simulated(**setting)
        same = journal.summary(cluster)
        assert mine["test_accuracy"] == same["test_accuracy"]
        assert mine["staleness"] == same["staleness"] and mine["dropped"] == 0
        assert mine["seconds"] == same["seconds"] and len(journal.evaluations) > 1


def test_each_kind_of_run_is_tried_at_each_rate():
    """One diverges at the largest."""
    kinds = {scheme: {"scheme": scheme, "workers": 2, "steps": 30} for scheme in ("HogWild", "AGN")}
    found = grid.losses_by_rate(kinds, [0.05, 0.2, 1e9], seeds=2)
    assert list(found) == list(kinds)
    for scheme, losses in found.items():
        assert losses.shape == (3, 2) and np.isinf(losses[2]).all()
        for rate, seed in ((0, 1), (1, 0)):
            flags = kinds[scheme] | {"learning_rate": (0.05, 0.2)[rate], "seed": seed}
            assert losses[rate, seed] == grid.measure(flags)["test_loss"]
    figure, axes = plt.subplots()
    panels.rates(axes, [0.05, 0.2, 1e9], found)
    rings = [line.get_xdata()[0] for line in axes.lines[1::2]]
    assert rings == [0.2, 0.2]
    plt.close(figure)


@pytest.mark.parametrize("losses", [[1, 2, 3], [3, 2, 1], [math.inf, math.inf, 1]])
def test_the_best_of_the_rates_must_not_be_at_an_end(losses):
    with pytest.raises(ValueError, match="try more rates"):
        grid.best(np.transpose([losses, losses]))
    assert grid.best(np.transpose([[2, 1, 3], [2, 1, math.inf]])) == 1


def test_the_processes_of_a_grid_end_with_the_program_that_is_killed(tmp_path):
    code = ("import os, grid; grid.measure_all([{'workers': 1, 'steps': 1}] * 4);"
            "print(*grid.processes()._processes, flush=True); os.kill(os.getpid(), 9)")  # fmt: skip
    with open(tmp_path / "pids", "w") as out:  # a pipe would end only with all of them
        done = subprocess.run([sys.executable, "-c", code], stdout=out, timeout=300,
                              env=environment() | {"PYTHONPATH": f"{FOLDER}:{ROOT}"})  # fmt: skip
    started = set(map(int, (tmp_path / "pids").read_text().split()))
    assert done.returncode == -signal.SIGKILL and started
    assert eventually(lambda: not started & set(processes()), 5)


def test_a_sparse_gradient_is_the_derivative_and_changes_few_weights():
    problem = Sparse(simulate.options(workers=1, model="none"), features=50, present=4)
    problem.x, problem.y = problem.x[:1], problem.y[:1]  # always the same example
    w = np.random.default_rng(0).normal(size=50)

    def loss(w):
        return np.log1p(np.exp(-problem.y[0] * w[problem.x[0]].sum()))

    found = problem.gradient(0, w)
    for i in range(50):
        step = 1e-6 * np.eye(50)[i]
        assert (loss(w + step) - loss(w - step)) / 2e-6 == pytest.approx(found[i], abs=1e-8)
    assert np.count_nonzero(found) <= 4


def test_the_panels_show_the_run():
    figure, axes = plt.subplots()
    cluster, journal = simulated("AGN", workers=6, steps=100, link_mbit=10)
    panels.draw(axes, cluster, journal)
    left, right, below = figure.axes
    assert left.lines[0].get_ydata()[-1] == 100 * journal.evaluations[-1]["test_accuracy"]
    assert len(right.patches) == len(journal.staleness)
    names = [text.get_text() for text in below.get_yticklabels()]
    assert names == ["ps", "worker 0", "worker 1", "worker 2", "worker 3"]
    plt.close(figure)
