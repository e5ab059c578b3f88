"""TensorFlow-2: its four strategies against NumPy and the sibling examples; killed tasks."""

import argparse
import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys

import numpy as np
import psutil
import pytest
import tensorflow.compat.v1 as tf
from conftest import (
    ROOT,
    copy_example,
    environment,
    eventually,
    initialise,
    kill_and_see_it_back,
    reach,
    task_pid,
)
from machine import seconds
from replays import EXACT, distance, flat, replayed, scheme_of

from common import data, models
from common.launch import network
from common.record import trace

tf.disable_eager_execution()

HERE = "TensorFlow-2"
FULL = ("--model", "linear", "--batch_size", 0, "--learning_rate", 0.3)
STEPS = 41
SEVERAL = ("--steps_per_execution", 3)  # of 41 or 32 steps, the last call makes two


def synchronous(finished, w: list[np.ndarray] | None = None, after: int = 0) -> np.ndarray:
    """The parameters at the end of a run, from the formula of synchronous SGD, on the mini-batches
    that the other examples draw. `w`: those after update `after`; default: the initial ones."""
    flags = argparse.Namespace(**finished.summary["flags"])
    with tf.Graph().as_default(), tf.Session() as session:
        initial = models.create(flags)
        params = [tf.placeholder(tf.float32, param.shape) for param in initial]
        shards = [data.batches(flags, k, flags.workers)() for k in range(flags.workers)]
        grads = [models.gradients(flags, params, batch)[1] for batch in shards]
        session.run(tf.global_variables_initializer())
        initialise(session)
        w = w or session.run(initial)
        for _ in range(flags.steps - after):
            found = session.run(grads, dict(zip(params, w)))
            w = [p - flags.learning_rate * np.mean(g, axis=0) for p, g in zip(w, zip(*found))]
    return np.concatenate([p.ravel() for p in w])


def assert_once_each(finished, steps: int, after: int = 0) -> None:
    """Checks a synchronous run: each worker contributed once to each update."""
    for k in range(finished.summary["workers"]):
        numbers = [event["global_step"] for event in finished.events(k)]
        assert numbers == list(range(after + 1, steps + 1))
    assert finished.summary["global_step"] == steps
    assert finished.summary["staleness"]["max"] == 0


def test_one_worker_of_parameter_server_is_gradient_descent(run):
    finished = run(HERE, *FULL, "--workers", 1, "--steps", STEPS)
    scheme = scheme_of("HogWild", finished.summary["flags"])
    assert distance(flat(finished), replayed(finished, scheme)) < EXACT
    jobs = [(task["job"], task["exit_code"]) for task in finished.summary["tasks"]]
    assert jobs == [("ps", 0), ("worker", 0), ("chief", 0)]
    assert finished.summary["staleness"]["max"] == 0


@pytest.mark.slow("two runs")
def test_parameter_server_is_hogwild_and_another_strategy_continues(run, tmp_path):
    """Each number appears once, and the staleness explains the result, but not to the last digit: a
    push may happen during another worker's pull. From its checkpoint, `central_storage` continues
    to exactly --steps. TensorFlow would read the folder's name as a pattern."""
    folder = ["--checkpoint_dir", tmp_path / "a[1]"]
    finished = run(HERE, *FULL, *folder, "--workers", 3, "--steps", 60)
    assert finished.summary["global_step"] == 60
    scheme = scheme_of("HogWild", finished.summary["flags"])
    measured, explained = flat(finished), replayed(finished, scheme)
    events = [(e["global_step"], k) for k in range(3) for e in finished.events(k)]
    for event in (event for k in range(3) for event in finished.events(k)):
        read = event["counted"] - event["out"]  # by the clock of the ps, here the same
        began = event["time"] - event["pull"] - event["compute"] - event["push"]
        arrived, sent = began + event["pull"], began + event["pull"] + event["compute"]
        assert began - 1e-3 < read < arrived + 1e-3 and sent - 1e-3 < event["counted"]
    fresh = np.zeros(650)  # as if no update were stale
    for _, k in sorted(events):
        fresh = scheme.update(fresh, scheme.contribution(k, fresh), 0, fresh)
    assert finished.summary["staleness"]["max"] > 0
    assert min(len(finished.events(k)) for k in range(3)) > 0
    assert distance(measured, explained) < min(0.01, distance(measured, fresh))

    second = run(
        HERE,
        "--strategy",
        "central_storage",
        *FULL,
        *folder,
        "--workers",
        3,
        "--steps",
        92,
        *SEVERAL,
    )
    assert "\n[worker 0] continues at update 60 of 92\n" in second.output
    assert distance(flat(second), synchronous(second, finished.parameters, after=60)) < EXACT
    assert_once_each(second, 92, after=60)


@pytest.mark.parametrize(
    ("strategy", "workers", "flags"),
    [
        ("mirrored", 3, FULL),
        pytest.param("multi_worker_mirrored", 2, FULL, marks=pytest.mark.slow("another strategy")),
        pytest.param("mirrored", 2, ["--learning_rate", 0.3], marks=pytest.mark.slow("batches")),
    ],
)  # fmt: skip
def test_a_synchronous_strategy_matches_the_formula(run, strategy, workers, flags):
    """Of synchronous SGD, on full batches and on the mini-batches that the other examples draw,
    even if a call makes several steps and the last call fewer. `central_storage`: the test above.
    """
    finished = run(HERE, "--strategy", strategy, "--workers", workers, *flags,
                   "--steps", STEPS, *SEVERAL)  # fmt: skip
    assert distance(flat(finished), synchronous(finished)) < 1e-4
    assert_once_each(finished, STEPS)
    assert [task["job"] for task in finished.summary["tasks"]] == ["worker"] * workers


@pytest.mark.slow("two runs")
@pytest.mark.parametrize("strategy", ["parameter_server", "multi_worker_mirrored"])
def test_target_accuracy_and_a_delayed_worker(run, strategy):
    """All workers stop long before --steps; synchronous ones stop after the same update. Under
    `parameter_server`, a delayed worker gets fewer steps."""
    flags = ["--strategy", strategy, "--steps", 100_000, "--target_accuracy", 0.9]
    if strategy == "parameter_server":
        flags += ["--delay", f"1:{seconds(0.05)}"]
    finished = run(HERE, *flags)
    # The last evaluation may be of later parameters.
    assert max(each["test_accuracy"] for each in trace.read_evaluations(finished.results)) >= 0.9
    assert finished.summary["global_step"] < 50_000
    if strategy == "parameter_server":
        assert 0 < len(finished.events(1)) < len(finished.events(0)) / 2
    else:
        assert_once_each(finished, finished.summary["global_step"])


@pytest.mark.slow("a separate run")
def test_nan_gives_a_one_line_error(run):
    finished = run(HERE, "--learning_rate", 1e30, "--workers", 1, ok=False)
    assert finished.code == 2
    last = finished.output.rstrip().splitlines()[-1]
    assert "is NaN or infinite: try a smaller --learning_rate than 1e+30" in last
    assert not (finished.results / "summary.json").exists()


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--strategy", "horovod"), "--strategy: "),
        (("--strategy", "mirrored", "--ps", 1), "--ps: this example runs in one process"),
        (("--strategy", "multi_worker_mirrored", "--ps", 1),
         "--ps: this example has no parameter server"),
        (("--window", 5), "unknown argument --window"),
        (("--ps", 0), "--ps 0: this example needs a parameter server"),
    ],
)  # fmt: skip
def test_mistakes_give_a_one_line_error(run, flags, sentence):
    finished = run(HERE, *flags, ok=False)
    assert finished.code == 2
    (line,) = finished.output.strip().splitlines()
    assert line.startswith(f"error: {sentence}")


def test_the_table_of_classes_is_complete():
    """Of `tf.train`, `tf.summary`, and the hooks that the collection uses."""
    page = (ROOT / "TensorFlow-2" / "README.md").read_text()
    table = page.partition("## From sessions to strategies")[2].partition("\n## ")[0]
    used = set()
    for path in [*ROOT.glob("[!.]*/**/*.py"), *ROOT.glob("[!.]*/**/*.ipynb")]:
        if path.relative_to(ROOT).parts[0] not in ("tests", HERE) and "results" not in path.parts:
            text = path.read_text(encoding="utf-8")
            used |= {*re.findall(r"\btf\.(?:train|summary)\.([A-Z]\w+)", text)}
            used |= {*re.findall(r"\btf\.(CriticalSection|RunOptions|RunMetadata|GraphKeys)", text)}
    assert {"Saver", "SessionRunHook", "AdamOptimizer", "CriticalSection"} <= used
    family = {"SessionCreator": "ChiefSessionCreator", "FileWriterCache": "FileWriter"}
    names = {"Optimizer" if n.endswith("Optimizer") else family.get(n, n) for n in used}
    assert not [name for name in names if not re.search(rf"\b{name}`", table)]


@pytest.mark.slow("two runs")
def test_a_checkpoint_of_an_example_with_sessions(run, default_run, tmp_path):
    folder = tmp_path / "checkpoints"
    shutil.copytree(default_run("Non-Distributed-Setup").results / "checkpoints", folder)
    finished = run(HERE, "--strategy", "mirrored", "--checkpoint_dir", folder, ok=False)
    assert finished.code == 2
    last = finished.output.rstrip().splitlines()[-1]
    assert re.match(r"error: the checkpoint .* is from another model, .*: use a different "
                    r"--checkpoint_dir$", last)  # fmt: skip


def end_of(process, where) -> dict:
    output, _ = process.communicate(timeout=seconds(120))
    assert process.returncode == 0, output
    return json.loads((where / "summary.json").read_text()) | {"output": output}


@pytest.mark.slow("waits until killed tasks are back")
def test_parameter_server_survives_the_loss_of_each_task(start):
    """A worker, the ps and the chief are killed in turn. Only the ps's death undoes steps: those
    of at most 2 s."""
    delay = seconds(0.01)
    flags = ["--steps", 900, "--delay", f"0:{delay},1:{delay}"]
    process, where = start(HERE, *flags)
    reach(where, 200)
    tasks = (("worker", 1), ("ps", 0), ("chief", 0))
    killed = {job: kill_and_see_it_back(where, job, index) for job, index in tasks}
    summary = end_of(process, where)
    assert 900 <= summary["global_step"] <= 910  # a step in flight may repeat
    assert summary["test_accuracy"] > 0.95
    said = re.findall(r"^\[chief 0\] (.*)$", summary["output"], re.M)
    assert said[0] == "lost another task"  # the ps; then the chief itself was killed
    # On a slow machine, a chief that starts again before the ps is back may lose it twice.
    continued = [text for text in said if text != "lost another task"]
    assert all(re.fullmatch(r"continues at update \d+ of 900", text) for text in continued)
    assert len(continued) >= 2
    assert {task["job"]: task["restarts"] for task in summary["tasks"]} == {
        "ps": 1, "worker": 1, "chief": 1}  # fmt: skip
    later = [event for event in reach(where, 1) if event["time"] > killed["ps"]]
    assert min(event["global_step"] for event in later) > 150


def test_a_chief_that_cannot_connect_starts_again(tmp_path):
    """A ps that accepts connections, but does not answer, as one that has just been replaced."""
    root = tmp_path / "mine"
    shutil.copytree(ROOT / "common", root / "common")
    shutil.copytree(ROOT / HERE, root / HERE, ignore=shutil.ignore_patterns("results"))
    problem = root / HERE / "problem.py"
    text = problem.read_text()
    assert text.count("CONNECTS = 60.0") == 1
    problem.write_text(text.replace("CONNECTS = 60.0", "CONNECTS = 2.0"))
    with contextlib.ExitStack() as stack:
        listening = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        ps, worker = (f"127.0.0.1:{each.getsockname()[1]}" for each in listening)
        (free,) = network.free_ports(1, private=False)
        process = subprocess.run(
            [sys.executable, root / HERE / "chief.py", "--ps_hosts", ps, "--worker_hosts", worker,
             "--chief_hosts", f"127.0.0.1:{free}", "--max_restarts", "1",
             "--results", tmp_path / "results"],
            cwd=tmp_path, env=environment(PYTHONPATH=str(root)), capture_output=True, text=True,
            timeout=seconds(120), check=False,
        )  # fmt: skip
    assert process.returncode == 2, process.stderr
    assert process.stdout.count("> [chief 0] lost another task: no connection in 2 s") == 2
    assert "starting again from the newest checkpoint" in process.stdout
    assert "chief 0 lost another task, and --max_restarts allows no more" in process.stderr


def test_a_server_that_exits_before_it_answers_has_left():
    """It is stopped while it is asked to leave, and then dies."""
    (port,) = network.free_ports(1, private=False)
    serve = ["-m", "common.commands.server", "--cluster_spec", f"worker|127.0.0.1:{port}",
             "--job_name", "worker", "--task_index", "0"]  # fmt: skip
    let_go = f"""
import types
import problem
task = types.SimpleNamespace(name="chief 0", servers=[("worker", 0)])
task.hosts = {{"worker": ["127.0.0.1:{port}"]}}
problem.let_go(task)
print("has left")
"""
    env = environment(PYTHONPATH=f"{ROOT}{os.pathsep}{ROOT / HERE}")
    more = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "env": env}
    with (
        subprocess.Popen([sys.executable, "-u", *serve], **more) as server,
        subprocess.Popen([sys.executable, "-c", let_go], **more) as chief,
    ):
        try:
            assert any("serves at" in line for line in server.stdout)
            server.send_signal(signal.SIGSTOP)

            def asks() -> bool:
                """`answers` closes its connection at once."""
                found = psutil.Process(chief.pid).net_connections()
                return any(c.status == "ESTABLISHED" and c.raddr.port == port for c in found)

            assert eventually(asks, 60)
            server.kill()
            said, _ = chief.communicate(timeout=seconds(60))
            assert "has left" in said and chief.returncode == 0, said
        finally:
            server.kill()
            chief.kill()


def test_a_worker_that_waits_too_long_after_a_restart_ends(tmp_path):
    """The other worker accepts connections, but does not answer. At its first start, a worker waits
    as long as it takes; after a restart, a step must come."""
    root = copy_example(HERE, tmp_path / "mine")
    problem = root / HERE / "problem.py"
    text = problem.read_text()
    assert text.count("RETURNS = 120 ") == 1
    problem.write_text(text.replace("RETURNS = 120 ", "RETURNS = 5 "))
    with socket.create_server(("127.0.0.1", 0)) as other:
        (free,) = network.free_ports(1, private=False)
        hosts = f"127.0.0.1:{other.getsockname()[1]},127.0.0.1:{free}"
        process = subprocess.run(
            [sys.executable, root / HERE / "multi_worker_mirrored.py", "--worker_hosts", hosts,
             "--task_index", "1", "--results", tmp_path / "results"],
            cwd=tmp_path, env=environment(PYTHONPATH=str(root), TASK_RESTARTS="1"),
            capture_output=True, text=True, timeout=seconds(120), check=False,
        )  # fmt: skip
    assert process.returncode == -signal.SIGALRM, process.stderr


@pytest.mark.slow("waits until killed tasks are back")
def test_multi_worker_mirrored_starts_again_when_a_worker_is_lost(start):
    """Each is killed once. The other notices, starts again too, and both go on from the newest
    checkpoint, never from the beginning. That repeats updates, unless it was just saved."""
    process, where = start(HERE, "--strategy", "multi_worker_mirrored", "--steps", 700,
                           "--delay", f"0:{seconds(0.005)}")  # fmt: skip
    last = 250
    for index in (1, 0):
        reach(where, last + 50)
        log = where / "logs" / f"worker-{1 - index}.log"
        before = len(log.read_text())
        kill_and_see_it_back(where, "worker", index, limit=240)
        said = log.read_text()[before:]
        assert f"> [worker {1 - index}] lost another task" in said
        assert "is starting again from the newest checkpoint" in said
        last = reach(where, 1)[-1]["global_step"]
    summary = end_of(process, where)
    assert summary["global_step"] == 700
    late = [summary["output"].count(f"worker {k} was killed by SIGALRM") for k in (0, 1)]
    assert [task["restarts"] for task in summary["tasks"]] == [1 + late[0], 1 + late[1]]
    said = r"^\[worker 0\] continues at update (\d+) of 700$"
    checkpoints = [int(number) for number in re.findall(said, summary["output"], re.M)]
    assert len(checkpoints) >= 2 and min(checkpoints) > 0
    numbers = [event["global_step"] for event in reach(where, 700)]
    assert (numbers[0], numbers[-1], {*numbers}) == (1, 700, {*range(1, 701)})
    after = {b for a, b in itertools.pairwise(numbers) if b != a + 1}
    assert after <= {number + 1 for number in checkpoints}


def test_a_worker_that_leaves_first_stops_nobody(run, tmp_path):
    """Worker 2 leaves as soon as all have passed the first barrier at the end."""
    script = (ROOT / HERE / "multi_worker_mirrored.py").read_text()
    before, barrier, rest = script.partition("\nbarrier()\n")
    leave = f"""{barrier}
import os, pathlib, time
pathlib.Path(flags.results, f"passed-{{task.index}}").touch()
while task.index == 2:
    if len([*pathlib.Path(flags.results).glob("passed-*")]) == 3:
        os._exit(0)
    time.sleep(0.001)
"""
    root = copy_example(HERE, tmp_path, multi_worker_mirrored=f"{before}{leave}{rest}")
    work = ("--strategy", "multi_worker_mirrored", "--workers", 3, "--steps", 20)
    finished = run(HERE, *work, root=root)
    logs = [path.read_text() for path in (finished.results / "logs").glob("*.log")]
    assert len(logs) == 3 and not any("starting again" in log for log in logs), logs


@pytest.mark.slow("a run whose worker is killed")
def test_without_restarts_it_ends_with_a_one_line_error(start):
    """Although the other worker notices the loss, and would start again. Where only the launcher
    notices: `test_ends.py`."""
    process, where = start(HERE, "--strategy", "multi_worker_mirrored", "--steps", 10**8,
                           "--max_restarts", 0)  # fmt: skip
    reach(where, 100)
    os.kill(task_pid(where, "worker", 1), signal.SIGKILL)
    output, _ = process.communicate(timeout=seconds(60))
    assert process.returncode in (1, 2)
    last = output.rstrip().splitlines()[-1]
    assert last.startswith("error: ") and last.endswith("--max_restarts 0 allows no more restarts")
