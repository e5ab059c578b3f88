"""What the answers to the notebooks' exercises quote: it does what the exercises say.

`bash measure/start.sh answers [NOTEBOOK...]` takes 15 minutes for all. It writes to `answers.json`
what each has printed, and `build/refresh.sh --fixed` writes the numbers that a notebook marks in
its answers from there.
"""

import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from kept import read, write
from watch import ROOT

from common.teach import running

FOUND = ROOT / "measure" / "answers.json"
SEEDS = (0, 1, 2)
# Notebook -> what prints the lines that its answers quote.
ANSWERS: dict[str, Callable[[], Iterator[str]]] = {}


def answers(notebook: str):
    """Registers a function whose lines the answers of this notebook quote."""

    def register(lines: Callable[[], Iterator[str]]):
        ANSWERS[notebook] = lines
        return lines

    return register


def between(name: str, values, form: str = ".1f") -> str:
    """The smallest and the largest of the values, each where a mark can name it."""
    return f"{name}: at least {min(values):{form}}; {name}: at most {max(values):{form}}"


def accuracies(name: str, example: str, *flags) -> str:
    """The test accuracy in percent, with three seeds."""
    runs = [running.run(example, *flags, "--seed", seed, show=False) for seed in SEEDS]
    return between(name, [100 * run.summary["test_accuracy"] for run in runs])


@answers("HogWild/HogWild.ipynb")
def hogwild() -> Iterator[str]:
    for workers in (4, 8):
        run = running.run("HogWild", "--compute_ms", 10, "--workers", workers)
        yield f"{workers} workers: mean staleness {run.staleness['mean']:.1f}"


@answers("AGN/AGN.ipynb")
def agn() -> Iterator[str]:
    window = ("--window", 20, "--steps", 100)
    yield accuracies("AGN, small", "AGN", *window)
    yield accuracies("HogWild, 100 updates", "HogWild", "--steps", 100)
    yield accuracies("HogWild, 2,000 updates", "HogWild", "--steps", 2000)
    large = (*window, "--hidden", 5000, "--batch_size", 512)
    for rate in (0.02, 0.08, 0.32, 1.28):
        yield accuracies(f"AGN at {rate}", "AGN", *large, "--learning_rate", rate)


@answers("DOWNPOUR/DOWNPOUR.ipynb")
def downpour() -> Iterator[str]:
    from common import data, flags

    options = flags.parser({"steps": 1, "learning_rate": 1}).parse_args([])  # the digits
    arrays = {}
    for part in ("train", "test"):
        x, y = data.load(options, part)
        arrays |= {f"x_{part}": 255 * x.reshape(-1, 64), f"y_{part}": y}
    with tempfile.TemporaryDirectory() as folder:
        np.savez(raw := Path(folder, "raw.npz"), **arrays)
        work = ("--steps", 3000, "--hidden", 2000, "--data", raw, "--learning_rate", 0.0005)
        yield accuracies("DOWNPOUR-Easy, raw pixels", "DOWNPOUR-Easy", *work)


@answers("DOWNPOUR-Easy/DOWNPOUR-Easy.ipynb")
def downpour_easy() -> Iterator[str]:
    import simulate

    flags = {"scheme": "Plain-DOWNPOUR", "workers": 1, "window": 40, "learning_rate": 0.05,
             "hidden": 128, "steps": 100}  # fmt: skip
    last = [simulate.run(**flags, seed=seed)[1].evaluations[-1] for seed in SEEDS]
    yield between("one worker", [100 * each["test_accuracy"] for each in last])


@answers("Dynamic-SGD/Dynamic-SGD.ipynb")
def dynamic_sgd() -> Iterator[str]:
    work = ("--model", "cnn", "--batch_size", 256, "--workers", 4, "--learning_rate", 0.6,
            "--steps", 2400)  # fmt: skip
    stale = []
    for example, more in (("Dynamic-SGD", ("--window", 1)), ("HogWild", ())):
        for seed in SEEDS:
            run = running.run(example, *work, *more, "--seed", seed, show=False)
            yield f"{example}, seed {seed}: {100 * run.summary['test_accuracy']:.1f}%"
            if example == "Dynamic-SGD":
                stale.append(run.staleness["mean"])
    yield f"mean staleness {statistics.mean(stale):.1f}"


@answers("DC-ASGD/DC-ASGD.ipynb")
def dc_asgd() -> Iterator[str]:
    for factor in (256, 0):
        work = ("--workers", 4, "--steps", 1000, "--dc_lambda", factor)
        yield accuracies(f"lambda = {factor}", "DC-ASGD", *work)


@answers("AEASGD/AEASGD.ipynb")
def aeasgd() -> Iterator[str]:
    yield accuracies("alpha = 0.45", "AEASGD", "--steps", 40)
    for alpha, steps in ((0.02, 40), (0.005, 40), (0.02, 400)):
        work = ("--steps", steps, "--moving_rate", alpha)
        yield accuracies(f"alpha = {alpha}, {steps} exchanges", "AEASGD", *work)
    text = (ROOT / "AEASGD" / "worker.py").read_text()
    (line,) = [line for line in text.splitlines(True) if "inter_op_parallelism_threads" in line]
    changed = running.changed("AEASGD", line, "")
    run = running.run(changed, "--model", "cnn", "--batch_size", 128, "--steps", 1200)
    yield f"without the line: mean staleness {run.staleness['mean']:.1f}"


@answers("AEAMSGD/AEAMSGD.ipynb")
def aeamsgd() -> Iterator[str]:
    for momentum, rate in ((0.9, 0.2), (0, 2)):
        work = ("--momentum", momentum, "--learning_rate", rate)
        yield accuracies(f"momentum {momentum}", "AEAMSGD", *work)


@answers("SAGN/SAGN.ipynb")
def sagn() -> Iterator[str]:
    for window, steps in ((10, 100), (1, 1000)):
        work = ("--delay", "1:0.01", "--window", window, "--steps", steps)
        found = running.run("SAGN", *work).summary
        waits, late = (task for task in found["tasks"] if task["job"] == "worker")
        sends = 100 * late["communicating"] / late["seconds"]
        idle = 100 * waits["waiting"] / waits["seconds"]
        yield (
            f"T = {window}: {found['seconds']:.1f} s; worker 1 sends for {sends:.0f}%; "
            f"worker 0 waits for {idle:.0f}%"
        )


@answers("Local-SGD/Local-SGD.ipynb")
def local_sgd() -> Iterator[str]:
    from grid import best, losses_by_rate

    work = ("--window", 200, "--steps", 10)
    yield accuracies("Local-SGD", "Local-SGD", *work)
    yield accuracies("SAGN", "SAGN", *work, "--learning_rate", 0.2)
    both = {"workers": 2, "data": "mnist1d", "window": 200, "steps": 10, "hidden": 128}
    kinds = {scheme: both | {"scheme": scheme} for scheme in ("Local-SGD", "SAGN")}
    for scheme, each in losses_by_rate(kinds, [0.0125 * 2**k for k in range(10)], 3).items():
        yield f"{scheme} at its best rate: a loss of {np.median(each[best(each)]):.1f}"


@answers("Synchronous-SGD-different-learning-rates/Synchronous-SGD-different-learning-rates.ipynb")
def different_rates() -> Iterator[str]:
    example = "Synchronous-SGD-different-learning-rates"
    yield accuracies("equal rates", example)
    yield accuracies("0.399 and 0.001", example, "--learning_rates", "0.399,0.001")


@answers("Your-Own/Your-Own.ipynb")
def your_own() -> Iterator[str]:
    wide = ("--hidden", 512, "--batch_size", 200, "--learning_rate", 0.00003, "--steps", 2200)
    for dropout in (0.2, 0.8):
        yield accuracies(f"dropout {dropout}", "Your-Own", *wide, "--dropout", dropout)


@answers("Keras-Model/Keras-Model.ipynb")
def keras_model() -> Iterator[str]:
    late = ("--workers", 4, "--delay", "0:0.01,1:0.01,2:0.01,3:0.01", "--bn_momentum", 0.6)
    found = running.run("Keras-Model", *late).summary
    yield f"d = 0.6: accuracy {100 * found['test_accuracy']:.1f}%"


@answers("CIFAR-10/CIFAR-10.ipynb")
def cifar_10() -> Iterator[str]:
    work = ("--data", "digits", "--steps", 540, "--learning_rate", 0.1, "--decay_steps", 405,
            "--log_frequency", 20, "--delay", "0:0.3")  # fmt: skip
    run = running.run("CIFAR-10", *work)
    for k in (0, 1):
        lines = [line.replace("%", "").split() for line in
                 (run.folder / "logs" / f"worker-{k}.log").read_text().splitlines()
                 if "waiting for data" in line and "sec/batch" in line]  # fmt: skip
        lines = lines[len(lines) // 5 :]  # without the start
        seconds = statistics.mean(float(words[words.index("sec/batch") - 1]) for words in lines)
        share = statistics.mean(float(words[words.index("data") + 1]) for words in lines)
        yield f"worker {k}: {seconds:.2f} s a batch, waits for {share:.1f}%"


@answers("One-Network-per-Device/One-Network-per-Device.ipynb")
def one_network() -> Iterator[str]:
    example, both = "One-Network-per-Device", ("--workers", 2, "--steps", 2000, "--batch_size", 256)
    for name, widths in (("narrow first", "64,256,1024"), ("wide first", "1024,256,64")):
        gaps = []
        for _ in range(3):
            work = (*both, "--rates", "0.02,0.1,0.5", "--widths", widths)
            run = running.run(example, *work, show=False)
            a, b = (mine[-1]["time"] for mine in run.events)
            gaps.append(abs(a - b))
        yield between(name, gaps)
    found = running.run(example, *both, "--rates", "0.5,0.5,0.5,0.5", "--widths", 64).summary
    yield (f"four alike: the ensemble {100 * found['ensemble_accuracy']:.1f}%, "
           f"members {100 * found['members_mean_accuracy']:.1f}%")  # fmt: skip


@answers("Model-Parallelism/Model-Parallelism.ipynb")
def model_parallelism() -> Iterator[str]:
    sys.path.insert(0, str(ROOT / "Model-Parallelism"))
    import costs

    example = "Model-Parallelism"
    size = ("--hidden", 700, "--batch_size", 1024, "--steps", 30, "--learning_rate", 0.002)
    for workers in (2, 4):
        run = running.run(example, *size, "--split", "units", "--workers", workers, show=False)
        sent = sum(size_ for ends, size_ in costs.travelled(run.folder)[0].items()
                   if {end.split()[0] for end in ends} == {"worker"})  # fmt: skip
        yield f"{workers} workers: {sent:,} bytes between them"
    run = running.run(example, *size, "--workers", 4, "--micro_batches", 4, show=False)
    idle: dict[int, list[float]] = {}
    for step in costs.steps(run.folder):
        for k in range(4):
            busy = sum(end - begin for _, worker, _, begin, end in step if worker == k)
            idle.setdefault(k, []).append(100 * (1 - busy / costs.span(step)))
    for k, shares in idle.items():
        yield f"worker {k} is idle for {statistics.median(shares):.0f}%"


@answers("Multiple-GPUs-Single-Machine/Multiple-GPUs-Single-Machine.ipynb")
def multiple_gpus() -> Iterator[str]:
    work = ("--mode", "towers", "--model", "linear", "--batch_size", 0, "--steps", 60)
    one, *more = (
        running.run("Multiple-GPUs-Single-Machine", *work, "--workers", n, show=False)
        for n in (1, 2, 4)
    )
    for n, run in zip((2, 4), more):
        yield f"{n} towers: apart by {apart(one, run):.5f}"
    yield f"the largest weight {max(abs(p).max() for p in one.parameters):.2f}"


def apart(a, b) -> float:
    """The largest difference between two runs' parameters."""
    return max(abs(p - q).max() for p, q in zip(a.parameters, b.parameters, strict=True))


@answers("TensorFlow-2/TensorFlow-2.ipynb")
def tensorflow_2() -> Iterator[str]:
    flags = ("--model", "linear", "--batch_size", 32, "--learning_rate", 0.3, "--steps", 30)
    one = running.run("Non-Distributed-Setup", *flags, show=False)
    workers = running.run("Synchronous-SGD", *flags, show=False)
    replicas = running.run("TensorFlow-2", "--strategy", "mirrored", *flags, show=False)
    yield f"batches of 32: apart from one process by {apart(replicas, one):.2f}"
    yield f"batches of 32: apart from Synchronous-SGD by {apart(replicas, workers):.2g}"


@answers("Actor-Learner/Actor-Learner.ipynb")
def actor_learner() -> Iterator[str]:
    run = running.run("Actor-Learner", "--workers", 1, "--capacity", 1)
    ages = run.summary["staleness"]["histogram"]
    share = 100 * ages.get("0", 0) / sum(ages.values())
    yield f"one actor: {sum(ages.values())} batches, {share:.0f}% of age 0, the oldest {max(ages)}"


@answers("Many-Workers/Many-Workers.ipynb")
def many_workers() -> Iterator[str]:
    import simulate

    flags = {"scheme": "HogWild", "workers": 20, "model": "none", "steps": 5000}
    yield f"a busy ps: {5000 / simulate.run(**flags, update=0.002)[1].time:.0f} updates/s"
    yield f"without: {5000 / simulate.run(**flags)[1].time:,.0f} updates/s"
    flags |= {"workers": 8, "steps": 3000, "compute": 0.1, "delay": {0: 0.9}}
    _, journal = simulate.run(**flags)
    for k in (0, 1):
        stale = np.mean([event["staleness"] for event in journal.recent[k]])
        yield f"worker {k}: mean staleness {stale:.1f}"


@answers("Many-Workers/Published-Results.ipynb")
def published_results() -> Iterator[str]:
    import published
    from grid import measure_all

    for scheme, rate in (("Plain-DOWNPOUR", 0.1), ("AEASGD", 0.8)):
        flags = {"scheme": scheme, "workers": 16, "window": 16, "learning_rate": rate, "seed": 0}
        yield f"{scheme}: a loss of {published.cost(flags, 20_000, None):.2f}"
    flags = {"scheme": "AEASGD", "workers": 20, "window": 10, "model": "none", "steps": 500}
    for latency in (0.0005, 0.02):
        (found,) = measure_all([flags | {"latency": latency}])
        yield f"latency {latency}: mean staleness {found['staleness']['mean']:.1f}"


@answers("Many-Workers/From-2-to-10000-Workers.ipynb")
def to_10000_workers() -> Iterator[str]:
    import simulate

    for spread in (0.1, 0.5):
        flags = {"scheme": "Synchronous-SGD", "workers": 1000, "model": "none", "compute": 0.3,
                 "latency": 0, "spread": spread}  # fmt: skip
        yield f"spread {spread}: {simulate.run(**flags, steps=100)[1].time / 100:.2f} s a round"


def main(arguments: list[str]) -> None:
    stems = {Path(path).stem: path for path in ANSWERS}
    if unknown := set(arguments) - set(stems):
        sys.exit(
            f"error: no answers of {', '.join(sorted(unknown))}: choose from {', '.join(stems)}"
        )
    chosen = [stems[name] for name in arguments or stems]
    for path in chosen:
        lines = list(ANSWERS[path]())
        print(path, *lines, sep="\n", flush=True)
        write(FOUND, {**read(FOUND), path: lines}, indent=1)


if __name__ == "__main__":
    main(sys.argv[1:])
