"""Shared by all tests: runs an example as a user would, and checks that nothing is left over."""

import contextlib
import fcntl
import functools
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import machine
import numpy as np
import psutil
import pytest
import warm
from machine import seconds
from watch import ROOT, environment, eventually, held, listening, processes, task_pid

from common.record import results, trace

pytest_plugins = ["budget", "pytester"]

# A shell starts its background jobs with Ctrl-C ignored, and every child would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ.setdefault("NVIDIA_TF32_OVERRIDE", "0")  # a GPU multiplies with all bits of float32

ENDLESS = 10**8  # steps for a run that a test stops midway, even on a fast machine


@dataclass
class Finished:
    """A finished run."""

    code: int
    output: str
    results: Path

    @property
    def summary(self) -> dict:
        return json.loads((self.results / "summary.json").read_text())

    @property
    def parameters(self) -> list[np.ndarray]:
        with np.load(self.results / "parameters.npz") as file:
            return [file[name] for name in file.files]

    def events(self, worker: int = 0) -> list[dict]:
        lines = (self.results / f"events-worker-{worker}.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]


def reach(folder, step: int, worker: int = 0) -> list[dict]:
    """Waits until a worker has made the given update, and returns its events so far."""
    tail, events = results.Tail(trace.events_file(folder, worker)), []

    def reached():
        events.extend(tail.read())
        return events and events[-1]["global_step"] >= step

    assert eventually(reached, 60), f"step {step} was not reached"
    return events


def wait_for_checkpoint(folder, step: int) -> None:
    """Waits until there is a checkpoint of at least `step` updates, from which a run continues."""

    def found():
        files = folder.glob("checkpoints/model.ckpt-*.index")
        return any(int(path.stem.partition("-")[2]) >= step for path in files)

    assert eventually(found, 60), f"no checkpoint of update {step} or a later one"


def last_lines(folder, lines: int = 12) -> str:
    """The end of what each task of a run has written."""
    logs = sorted(folder.glob("logs/*.log"))
    return "\n".join(
        f"{log.name}:\n" + "\n".join(log.read_text().splitlines()[-lines:]) for log in logs
    )


def kill_and_see_it_back(where, job: str, index: int, workers: int = 2, limit: float = 60) -> float:
    """Kills a task and waits until all workers continue after its restart, for so many usual
    seconds; returns the time of the kill."""
    tails = [results.Tail(trace.events_file(where, k)) for k in range(workers)]
    pid, killed = task_pid(where, job, index), time.time()
    os.kill(pid, signal.SIGKILL)
    went_on = set()

    def back():
        for k, tail in enumerate(tails):
            if any(event["time"] > restarted for event in tail.read()):
                went_on.add(k)
        return len(went_on) == workers

    def running():
        with contextlib.suppress(ValueError):
            return task_pid(where, job, index) != pid

    assert eventually(running, 30), f"{job} {index} was not restarted"
    restarted = time.time() + seconds(1)  # steps in flight have ended by then
    assert eventually(back, limit), (
        f"after {job} {index} restarted, only workers {went_on} continued\n{last_lines(where)}"
    )
    return killed


def initialise(session) -> None:
    """Initialises local variables, tables and pipelines of the default graph, as a run does."""
    import tensorflow.compat.v1 as tf  # here, since most tests only start processes

    pipelines = [op for op in session.graph.get_operations() if op.type == "MakeIterator"]
    session.run([tf.local_variables_initializer(), tf.tables_initializer(), *pipelines])


def copy_example(name: str, to, **changes: str):
    """Copies an example with `common/`, as a reader would; `changes` are its new scripts."""
    shutil.copytree(ROOT / "common", to / "common")
    shutil.copytree(ROOT / name, to / name, ignore=shutil.ignore_patterns("results"))
    for script, text in changes.items():
        (to / name / f"{script}.py").write_text(text)
    return to


def variables_set() -> dict[str, str]:
    """The environment without pytest's own variable."""
    return {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}


@pytest.fixture(autouse=True)
def nothing_left():
    """After every test: its processes and ports are gone, and no variable has changed."""
    machine.renew()
    before, variables = listening(), variables_set()
    yield
    left = {} if eventually(lambda: not processes(), 5) else processes()
    for pid in left:
        os.kill(pid, 9)
    assert not left

    def ports_left() -> set[int]:
        return held({inode: port for inode, port in listening().items() if inode not in before})

    # A process of a test that runs at the same time may end between two looks.
    assert eventually(lambda: not ports_left(), 5), ports_left()
    changed = dict(variables.items() ^ variables_set().items())
    assert not changed, "later tests would inherit it: monkeypatch.setenv undoes it"


@pytest.fixture
def start(tmp_path):
    """Starts `bash FOLDER/run.sh --plain flags` and returns (its Popen, its results folder). It
    saves the second that curves.png takes, unless `curves` is true."""
    started, numbers = [], itertools.count()

    def _start(folder, *flags, root: Path = ROOT, curves: bool = False, **env: str):
        flags = [str(flag) for flag in flags]
        env |= {} if curves else {"NO_CURVES": "1"}
        results = tmp_path / f"results-{next(numbers)}"
        if "--results" in flags:
            results = Path(flags[flags.index("--results") + 1])
        else:
            flags += ["--results", str(results)]
        process = subprocess.Popen(
            ["bash", str(root / folder / "run.sh"), "--plain", *flags],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=tmp_path,
            env=environment(**env),
        )
        started.append(process)
        return process, results

    yield _start
    for process in started:
        if process.poll() is None:
            process.kill()
        if not process.stdout.closed:
            process.communicate()


@pytest.fixture(scope="session")
def shared(tmp_path_factory, worker_id) -> Path:
    """A folder shared by all processes that pytest-xdist has started."""
    own = tmp_path_factory.getbasetemp()
    return own if worker_id == "master" else own.parent


@contextlib.contextmanager
def locked(path: Path):
    """Lets one process at a time go on."""
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def once(shared):
    """`once("site", make)`: the folder that `make(folder)` has made, for all tests that read it."""

    def _once(name, make) -> Path:
        folder, done = shared / name, shared / f"{name}.done"
        with locked(shared / f"{name}.lock"):
            if not done.exists():
                make(folder)
                done.touch()
        return folder

    return _once


@pytest.fixture(scope="session")
def site(once) -> Path:
    """The HTML site, built once."""

    def make(folder):
        done = subprocess.run(["bash", str(ROOT / "build/site.sh"), str(folder)], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              env=environment(), check=False)  # fmt: skip
        assert done.returncode == 0, done.stdout

    return once("site", make)


@pytest.fixture
def two_cores():
    """For one test: what it starts uses two of the cores, so that a run's tasks, two or more, have
    one thread each. Only then do the numbers of the updates tell exactly what each pull contained.
    """
    if not hasattr(os, "sched_setaffinity"):  # macOS
        if os.cpu_count() > 3:
            pytest.skip("this system cannot give a run only some of its cores")
        yield
        return
    every = os.sched_getaffinity(0)
    os.sched_setaffinity(0, random.sample(sorted(every), min(2, len(every))))
    yield
    os.sched_setaffinity(0, every)


@pytest.fixture
def default_run(run, once):
    """`default_run("HogWild")`: a run without flags, shared by tests that only look at it."""

    def _default_run(folder) -> Finished:
        def make(where):
            more = {"curves": True, "cold": True}  # as a user's
            output = run(folder, "--results", where / "results", **more).output
            (where / "screen").write_text(output)

        where = once(f"default-{folder}", make)
        return Finished(0, (where / "screen").read_text(), where / "results")

    return _default_run


@pytest.fixture
def default_ports(shared):
    """For one test at a time: ports 2222 to 2224."""
    with locked(shared / "ports.lock"):
        yield


@pytest.fixture(scope="session")
def warm_python():
    """`warm_python()`: the path of a Python that has imported TensorFlow already, and the process
    that it forks; the usual one and None where there is no such thing."""
    with contextlib.ExitStack() as stack:

        @functools.cache
        def _warm_python():
            if not warm.POSSIBLE:
                return sys.executable, None
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            python, server = stack.enter_context(warm.python(folder))
            return str(python), psutil.Process(server.pid)

        yield _warm_python


@pytest.fixture
def run(start, warm_python):
    """Runs an example to the end: `run("HogWild", "--steps", 20)` -> Finished. Its tasks start
    sooner than a user's, unless `cold` is true: they find TensorFlow imported."""

    def _run(
        folder, *flags, ok: bool = True, patience: float = 120, cold: bool = False, **more
    ) -> Finished:
        if not cold:
            more.setdefault("PYTHON", warm_python()[0])
        process, results = start(folder, *flags, **more)
        output, _ = process.communicate(timeout=seconds(patience))
        assert not ok or process.returncode == 0, output
        return Finished(process.returncode, output, results)

    return _run
