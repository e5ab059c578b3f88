"""Actor-Learner: the learner's mathematics, its queue, and what happens when a task dies."""

import json
import math
import pickle
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from conftest import (
    ROOT,
    copy_example,
    environment,
    kill_and_see_it_back,
    reach,
    wait_for_checkpoint,
)
from machine import seconds

from common import models
from common.launch import prepare

FOLDER = ROOT / "Actor-Learner"
sys.path.append(str(FOLDER))
import cartpole  # noqa: E402
import shared  # noqa: E402


def forward(w, x):
    """One hidden layer with ReLU: returns the values before and after it, and the output."""
    hidden = x @ w[0] + w[1]
    return hidden, np.maximum(hidden, 0), np.maximum(hidden, 0) @ w[2] + w[3]


def back(w, x, d):
    """The gradient with respect to weights and biases, from the output's gradient."""
    hidden, active, _ = forward(w, x)
    below = (d @ w[2].T) * (hidden > 0)
    return [x.T @ below, below.sum(axis=0), active.T @ d, d.sum(axis=0)]


def loss_and_gradient(policy, baseline, x, actions, returns):
    """mean(-A log pi) + mean((G - b)^2) with the constant A = G - b; from the formula."""
    n, rows = len(actions), np.arange(len(actions))
    scores = forward(policy, x)[2]
    pi = np.exp(scores - scores.max(axis=1, keepdims=True))
    pi /= pi.sum(axis=1, keepdims=True)
    advantages = returns - forward(baseline, x)[2][:, 0]
    loss = np.mean(-advantages * np.log(pi[rows, actions])) + np.mean(advantages**2)
    pi[rows, actions] -= 1
    of_baseline = back(baseline, x, (-2 * advantages / n)[:, None])
    return loss, back(policy, x, pi * advantages[:, None] / n) + of_baseline


class Adam:
    """arXiv 1412.6980, Algorithm 1, with the operations ordered as at the end of section 2."""

    def __init__(self, rate, w):
        self.rate, self.t = rate, 0
        self.m, self.v = ([np.zeros_like(each) for each in w] for _ in range(2))

    def __call__(self, w, gradient):
        self.t += 1
        self.m = [0.9 * m + 0.1 * g for m, g in zip(self.m, gradient)]
        self.v = [0.999 * v + 0.001 * g * g for v, g in zip(self.v, gradient)]
        rate = self.rate * math.sqrt(1 - 0.999**self.t) / (1 - 0.9**self.t)
        return [x - rate * m / (np.sqrt(v) + 1e-8) for x, m, v in zip(w, self.m, self.v)]


def changed(root, *pairs):
    """A copy of the example with some text of chief.py replaced."""
    source = (FOLDER / "chief.py").read_text()
    for old, new in pairs:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    return copy_example("Actor-Learner", root, chief=source)


def events_of(folder, workers=2) -> list[dict]:
    paths = [Path(folder) / f"events-worker-{k}.jsonl" for k in range(workers)]
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def test_updates_match_numpy_and_results_match_the_contract(run, tmp_path):
    """The run saves every batch that the learner took and the parameters after it. NumPy applies
    the same update to the same parameters.

    Each update is checked separately: a ReLU unit whose input is almost 0 may be on in float32 and
    off in float64, and Adam amplifies small differences.
    """
    keep = "import pickle\nkept = open(f'{flags.results}/batches.pickle', 'ab')\n"
    root = changed(
        tmp_path / "mine",
        ("# 6. TensorFlow's", keep + "# 6. TensorFlow's"),
        ("update = {", "update = batch | {"),
        ("    ready.open(sess)\n", "    ready.open(sess)\n"
         "    pickle.dump(sess.run([*policy, *baseline]), kept)\n"),
        ("        made, mean = int(",
         "        pickle.dump((found, sess.run([*policy, *baseline])), kept)\n"
         "        made, mean = int("),
    )  # fmt: skip
    finished = run("Actor-Learner", "--steps", 60, "--discount", 0.95, root=root,
                   curves=True)  # fmt: skip
    with open(finished.results / "batches.pickle", "rb") as file:
        start = pickle.load(file)
        batches, parameters = zip(*[pickle.load(file) for _ in range(60)])

    adam = Adam(rate := finished.summary["flags"]["learning_rate"], start)
    for batch, before, after in zip(batches, [start, *parameters], parameters):
        lasted = batch["returns"].astype(int)
        expected = [(1 - 0.95 ** np.arange(n, 0, -1)) / (1 - 0.95) for n in lasted]
        np.testing.assert_allclose(batch["returns_to_go"], np.concatenate(expected), rtol=1e-5)
        x = batch["observations"].astype(np.float64)
        w = [array.astype(np.float64) for array in before]
        loss, gradient = loss_and_gradient(w[:4], w[4:], x, batch["actions"],
                                           batch["returns_to_go"])  # fmt: skip
        assert batch["loss"] == pytest.approx(loss, rel=1e-3)
        for measured, array in zip(after, adam(w, gradient), strict=True):
            np.testing.assert_allclose(measured, array, atol=0.02 * rate)  # it moves by about rate
    assert max(np.abs(array).max() for array in after[2:4]) > 0.1  # the policy has changed
    for measured, array in zip(finished.parameters, after, strict=True):
        np.testing.assert_array_equal(measured, array)

    events = sorted(events_of(finished.results), key=lambda event: event["global_step"])
    assert [event["global_step"] for event in events] == list(range(1, 61))
    for event, batch in zip(events, batches):
        assert event["returns"] == batch["returns"].tolist()
        assert event["examples"] == sum(event["returns"]) == len(batch["actions"])
        assert event["return"] == pytest.approx(np.mean(event["returns"]))
        assert event["pulled_at"] == batch["pulled_at"]
        assert event["staleness"] == event["global_step"] - 1 - event["pulled_at"] >= 0
        assert 0 <= event["queued"] <= finished.summary["flags"]["capacity"]
        assert event["pull"] > 0 and event["compute"] > 0
        assert event["counted"] > event["time"]  # the learner updates after the actor has played
    assert min(len(finished.events(k)) for k in (0, 1)) > 5

    summary = finished.summary
    assert (summary["workers"], summary["ps"], summary["global_step"]) == (2, 0, 60)
    assert summary["examples"] == sum(event["examples"] for event in events)
    ended = [(task["job"], task["exit_code"], task["restarts"]) for task in summary["tasks"]]
    assert ended == [("worker", 0, 0), ("worker", 0, 0), ("chief", 0, 0)]
    again = cartpole.greedy_return(finished.parameters[:4], 100, summary["flags"]["seed"])
    assert summary["test_return"] == again
    assert summary["test_accuracy"] == pytest.approx(again / 500)
    assert summary["test_loss"] == pytest.approx(1 - again / 500)
    assert [array.shape for array in finished.parameters] == [
        (4, 32), (32,), (32, 2), (2,), (4, 32), (32,), (32, 1), (1,)]  # fmt: skip
    assert (finished.results / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert list((finished.results / "checkpoints").glob("model.ckpt-60.index"))
    assert list(finished.results.rglob("events.out.tfevents.*"))
    assert re.search(r"^\[worker 0\] step \d+ .* staleness \d+  return \d+$", finished.output, re.M)
    assert f"(return {again:.1f}); results in " in finished.output.splitlines()[-1]


def test_actors_and_learner_compute_the_same_policy():
    """NumPy and TensorFlow give the same output for the same arrays."""
    rng = np.random.default_rng(0)
    policy = [rng.normal(size=shape).astype(np.float32) for shape in ([4, 8], [8], [8, 2], [2])]
    x = rng.normal(size=[20, 4]).astype(np.float32)
    with tf.Graph().as_default(), tf.Session() as session:
        output = session.run(models.logits("mlp", policy, tf.constant(x)))
    np.testing.assert_allclose(cartpole.preferences(policy, x), output, rtol=1e-4, atol=1e-5)


def test_moves_are_drawn_from_the_policy():
    """A policy whose logit for right is higher by log 3 goes right three times as often as left."""
    policy = [np.zeros([4, 8]), np.zeros(8), np.zeros([8, 2]), np.array([0, math.log(3)])]
    flags = SimpleNamespace(episodes=400, discount=1)
    game = cartpole.gymnasium.make("CartPole-v1")
    game.reset(seed=0)
    batch = cartpole.collect(game, policy, flags, np.random.default_rng(0))
    n = len(batch["actions"])
    assert abs(batch["actions"].mean() - 0.75) < 4 * math.sqrt(0.75 * 0.25 / n)
    assert sum(batch["returns"]) == n == len(batch["observations"])
    first = np.cumsum([0, *batch["returns"][:-1]])
    assert list(batch["returns_to_go"][first]) == batch["returns"]  # undiscounted: remaining steps


def test_the_test_has_its_own_episodes(monkeypatch):
    """No two of the test, actors, seeds and restarts share an episode's starting position."""
    ways = [(0, 0), (1, 0), *((seed, 1 + k, restarts) for seed in (0, 1, 1000) for k in range(3)
                              for restarts in (0, 1))]  # fmt: skip
    begins = [tuple(cartpole.start(*way)[0].reset()[0]) for way in ways]
    assert len(set(begins)) == len(ways)
    seen = []
    monkeypatch.setattr(cartpole, "preferences", lambda _, x: seen.append(x) or np.zeros(2))
    cartpole.greedy_return([], 1, seed=0)
    assert tuple(seen[0]) == begins[0]


def test_returns_to_go():
    assert list(cartpole.returns_to_go(3, 0.5)) == [1.75, 1.5, 1]
    assert list(cartpole.returns_to_go(1, 0.5)) == [1]
    assert list(cartpole.returns_to_go(4, 1)) == [4, 3, 2, 1]


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [("episodes", 0, "--episodes 0: must be 1 or more"),
     ("capacity", 0, "--capacity 0: must be 1 or more"),
     ("discount", 1.5, "--discount 1.5: must be at least 0 and at most 1")],
)  # fmt: skip
def test_a_bad_value_gives_a_one_line_error(capsys, name, value, words):
    flags = SimpleNamespace(**{"episodes": 4, "capacity": 4, "discount": 0.9, name: value})
    with pytest.raises(SystemExit) as ended:
        shared.check(flags)
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"error: {words}\n"


def test_a_missing_package_gives_a_one_line_error(tmp_path, capsys):
    """Before anything starts. A module beside the script does not count as a package."""
    prepare.packages(FOLDER)
    (tmp_path / "beside.py").write_text("import json\n")
    (tmp_path / "worker.py").write_text("import beside\nfrom no_such_gymnasium import make\n")
    with pytest.raises(SystemExit) as ended:
        prepare.packages(tmp_path)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "worker.py imports no_such_gymnasium" in line and "requirements.txt" in line


@pytest.mark.slow("a run that waits")
def test_a_task_that_waits_at_the_queue_computes_nothing(run, tmp_path):
    """The queue has room for one batch; the actor holds the next until the learner takes the first.

    The learner takes nothing until the actor is idle. Then it sets the update count to 1,000, to
    mark batches collected later, and takes three batches. At the end the actor is stopped, and the
    learner waits at the empty queue.
    """
    program = """    ready.open(sess)
    import json, time
    import psutil

    def computing(process, wait):
        before = sum(process.cpu_times()[:2])
        wait()
        return sum(process.cpu_times()[:2]) - before

    def come_to_rest():
        while computing(actor, lambda: time.sleep(1)) > 0.2:
            pass

    def at_empty_queue():
        try:
            sess.run(batch["pulled_at"], options=tf.RunOptions(timeout_in_ms=2000))
        except tf.errors.DeadlineExceededError:
            return
        raise SystemExit("the queue was not empty")

    while sess.run(size) == 0:
        time.sleep(0.05)
    (actor,) = [p for p in psutil.process_iter(["cmdline"])
                if flags.results in (p.info["cmdline"] or [])
                and p.info["cmdline"][-4:] == ["--job_name", "worker", "--task_index", "0"]]
    come_to_rest()
    waited = [computing(actor, lambda: time.sleep(2))]
    sizes = [int(sess.run(size))]
    sess.run(later)
    found = []
    for _ in range(3):
        found.append(int(sess.run(batch["pulled_at"])))
        while sess.run(size) == 0:
            time.sleep(0.01)
        sizes.append(int(sess.run(size)))
    come_to_rest()
    actor.suspend()
    for _ in range(2):  # in the queue; in the actor's hands
        sess.run(batch["pulled_at"])
    waited.append(computing(psutil.Process(), at_empty_queue))
    actor.resume()
    print(json.dumps({"waited": waited, "sizes": sizes, "found": found}), flush=True)
    sess.run(sooner)
"""
    root = changed(
        tmp_path / "mine",
        ("so_far = [", "size, later = queue.size(), global_step.assign(1000)\n"
         "sooner = global_step.assign(0)\nso_far = ["),
        ("    ready.open(sess)\n", program),
    )  # fmt: skip
    flags = ("--workers", 1, "--capacity", 1, "--steps", 10)
    finished = run("Actor-Learner", *flags, root=root, cold=True)  # it stops the actor's process
    log = (finished.results / "logs" / "chief-0.log").read_text()
    measured = json.loads(re.search(r"^\{.*\}$", log, re.M)[0])
    assert measured["sizes"] == [1, 1, 1, 1]
    assert measured["found"] == [0, 0, 1000]  # in the queue; in the actor's hands; collected later
    assert max(measured["waited"]) < 0.1 * 2  # seconds of CPU time in 2 s of waiting
    assert finished.summary["global_step"] == 10


@pytest.mark.slow("waits until killed tasks are back")
def test_killed_tasks_come_back(start):
    """An actor, then the learner: each comes back, and the run makes all its updates."""
    delay = seconds(0.03)
    process, where = start("Actor-Learner", "--steps", 600, "--target_return", 501, "--episodes", 1,
                           "--delay", f"0:{delay},1:{delay}")  # fmt: skip
    reach(where, 60)
    lost = kill_and_see_it_back(where, "worker", 1)
    before = max(e["global_step"] for e in events_of(where) if e["time"] < lost)
    reached = reach(where, before + 20)[-1]["global_step"]
    steps = sorted(e["global_step"] for e in events_of(where) if e["global_step"] <= reached)
    assert steps == list(range(1, reached + 1))  # an actor's death undoes no update
    wait_for_checkpoint(where, 61)
    lost = kill_and_see_it_back(where, "chief", 0)
    output, _ = process.communicate(timeout=seconds(120))
    assert process.returncode == 0, output
    summary = json.loads((where / "summary.json").read_text())
    assert summary["global_step"] == 600
    restarts = {f"{task['job']} {task['index']}": task["restarts"] for task in summary["tasks"]}
    assert restarts == {"worker 0": 0, "worker 1": 1, "chief 0": 1}
    assert "chief 0 was killed by SIGKILL: restarted (1 of 3)" in output
    assert re.search(r"^\[chief 0\] continues at update \d+ of 600$", output, re.M)
    found = {e["global_step"] for e in events_of(where)}
    assert found == set(range(1, 601))  # none is missing; some may have been repeated
    for k in (0, 1):
        log = (where / "logs" / f"worker-{k}.log").read_text()
        assert f"worker {k} lost chief 0" in log
    first = min(e["global_step"] for e in events_of(where) if e["time"] > lost)
    assert first > 60  # it continued from a recent checkpoint


# Every seventh update of the learner is aborted before it is made, every eleventh afterwards.
ABORT = """
calls, run = [], tf.Session.run
TEXT = "The same RunGraph (Worker) request was received twice. step_id: 3"


def aborting(session, fetches, *args, **more):
    if "summary" not in str(fetches):
        return run(session, fetches, *args, **more)
    calls.append(None)
    if len(calls) % 7 == 3:
        raise tf.errors.AbortedError(None, None, TEXT)
    found = run(session, fetches, *args, **more)
    if len(calls) % 11 == 5:
        print("made", int(found["caller"]["count"]), flush=True)
        raise tf.errors.CancelledError(None, None, f"[_Derived_]{TEXT}")
    return found


tf.Session.run = aborting

# 6. """


def test_the_learner_goes_on_after_aborted_calls(run, tmp_path):
    """No update is lost or made twice, although the learner is not told of those aborted late."""
    chief = (FOLDER / "chief.py").read_text()
    assert chief.count("\n# 6. ") == 1
    root = copy_example(
        "Actor-Learner", tmp_path / "mine", chief=chief.replace("\n# 6. ", ABORT, 1)
    )
    finished = run("Actor-Learner", "--steps", 100, "--episodes", 1, "--target_return", 500,
                   root=root)  # fmt: skip
    assert finished.summary["global_step"] == 100
    assert "lost" not in finished.output and "restarted" not in finished.output
    log = (finished.results / "logs" / "chief-0.log").read_text()
    untold = [int(count) for count in re.findall(r"^made (\d+)$", log, re.M)]
    told = [event["global_step"] for k in (0, 1) for event in finished.events(k)]
    assert untold and sorted(told + untold) == list(range(1, 101))


@pytest.mark.slow("a run until it has learnt")
def test_it_learns(default_run):
    """The run stops once the mean return of the last 100 episodes reaches 195."""
    finished = default_run("Actor-Learner")
    assert finished.summary["global_step"] < 2000
    assert finished.summary["seconds"] < 180
    events = sorted(events_of(finished.results), key=lambda event: event["global_step"])
    returns = [each for event in events for each in event["returns"]]
    assert np.mean(returns[-100:]) >= 195
    assert np.mean(returns[-104:-4]) < 195
    assert np.mean(returns[:20]) < 60
    assert finished.summary["test_return"] > 60


@pytest.mark.slow("waits for tasks that never come")
def test_by_hand_a_missing_task_is_named(tmp_path):
    from common.launch import network

    ports = network.free_ports(4, private=False)
    limit = str(round(seconds(2)))

    def task(script, k, chief):
        hosts = ["--chief_hosts", f"localhost:{chief}", "--worker_hosts", f"localhost:{ports[k]}"]
        command = [sys.executable, str(FOLDER / script), *hosts, "--timeout", limit]
        return subprocess.Popen(
            [*command, "--results", str(tmp_path / script)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=environment(PYTHONPATH=str(ROOT)),
        )  # fmt: skip

    alone = {"chief 0": task("worker.py", 0, ports[2]), "worker": task("chief.py", 1, ports[3])}
    for missing, process in alone.items():
        output, _ = process.communicate(timeout=seconds(60))
        assert process.returncode == 2, output
        (line,) = [text for text in output.splitlines() if text.startswith("error:")]
        assert missing in line and f"{limit} s" in line
