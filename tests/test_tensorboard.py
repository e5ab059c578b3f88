"""A run in TensorBoard: its points are means of the events, and its graph has scopes."""

import collections
import itertools
import re
from argparse import Namespace

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from conftest import ROOT
from tensorboard.plugins.hparams import metadata as hparams

from common.record import trace
from common.training import evaluation
from common.training.board import Board

TAGS = ("loss", "staleness", "speed/examples_per_second", "time/computing", "time/communicating",
        "time/waiting")  # fmt: skip


def shown(folder) -> tuple[dict, list]:
    """Reads the files of one TensorBoard run: tag -> [(global step, value)], and graphs."""
    scalars, graphs = collections.defaultdict(list), []
    for path in folder.glob("events.out.tfevents.*"):
        for event in tf.train.summary_iterator(str(path)):
            if event.graph_def:
                graphs.append(tf.GraphDef.FromString(event.graph_def))
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name != "hparams":
                    scalars[value.tag].append((event.step, value.simple_value))
    return scalars, graphs


def compared(folder) -> list[dict]:
    """What the table HPARAMS says about the TensorBoard run in `folder`, each time it was said."""
    found = []
    for path in folder.glob("events.out.tfevents.*"):
        for event in tf.train.summary_iterator(str(path)):
            for value in event.summary.value:
                if value.tag == hparams.SESSION_START_INFO_TAG:
                    content = value.metadata.plugin_data.content
                    found.append(hparams.parse_session_start_info_plugin_data(content).hparams)
    return [{name: getattr(value, value.WhichOneof("kind")) for name, value in each.items()}
            for each in found]  # fmt: skip


def expected(events: list[dict], batch: int) -> dict[str, float]:
    """The values of the point for these events, of which the first belongs to the point before."""
    before, *events = events
    seconds = events[-1]["time"] - before["time"]
    computing = sum(event["compute"] for event in events) / seconds
    communicating = sum(event["pull"] + event["push"] for event in events) / seconds
    examples = sum(event.get("examples", batch) for event in events)
    return {
        "loss": np.mean([event["loss"] for event in events]),
        "staleness": np.mean([event["staleness"] for event in events]),
        "speed/examples_per_second": examples / seconds,
        "time/computing": computing,
        "time/communicating": communicating,
        "time/waiting": max(0.0, 1 - computing - communicating),
    }


def assert_points_are_means(finished, k: int, batch: int) -> list:
    """The points of worker k cover all its events; returns the graphs."""
    scalars, graphs = shown(finished.results / f"worker-{k}")
    assert set(scalars) == set(TAGS)
    at = [step for step, _ in scalars["loss"]]
    assert at == sorted(set(at))
    events = finished.events(k)
    steps = [event["global_step"] for event in events]
    assert at[-1] == steps[-1]
    for first, last in itertools.pairwise(at):
        part = events[steps.index(first) : steps.index(last) + 1]
        for tag, value in expected(part, batch).items():
            assert dict(scalars[tag])[last] == pytest.approx(value, rel=1e-4, abs=1e-4), tag
    head = events[: steps.index(at[0]) + 1]
    assert scalars["loss"][0][1] == pytest.approx(np.mean([e["loss"] for e in head]))
    return graphs


def assert_runs(finished, names: set[str]) -> None:
    """TensorBoard shows these runs and no others, and each has scalars. It searches the whole
    results folder, so a file of events beside the checkpoints would be a run, too."""
    everywhere = {path.parent for path in finished.results.rglob("events.out.tfevents.*")}
    assert everywhere == {finished.results / name for name in names}
    assert all(shown(path)[0] for path in everywhere)
    (flags,) = compared(finished.results / "test")
    expected = {name: value for name, value in finished.summary["flags"].items()
                if isinstance(value, bool | int | float | str)}  # fmt: skip
    assert flags == {name: expected[name] for name in flags}
    assert {"workers", "steps", "seed"} <= set(flags)
    assert not {"results", "checkpoint_dir", "timeout", "network"} & set(flags)


def test_the_loss_comes_first():
    """TensorBoard sorts the tags."""
    texts = [path.read_text() for path in ROOT.glob("[A-Z]*/*.py")]
    own = [tag for text in texts for tag in re.findall(r'summary\.scalar\("([^"]+)"', text)]
    assert len(own) >= 4
    assert min(*TAGS, *own, "test_accuracy") == "loss"


SLOW = pytest.mark.slow("another scheme")


@pytest.mark.parametrize(
    ("example", "examples", "tested"),
    [("HogWild", 32, 30), pytest.param("AGN", 320, 12, marks=SLOW)],
)
def test_a_default_run(default_run, example, examples, tested):
    finished = default_run(example)
    assert_runs(finished, {"worker-0", "worker-1", "test"})
    measured, _ = shown(finished.results / "test")
    evaluations = trace.read_evaluations(finished.results)
    assert set(measured) == {"test_accuracy", "test_loss"}
    # HogWild has about 50; AGN, whose run takes a second, about 25: where evaluations are dear
    # there are fewer, since they may take only a tenth of the time.
    assert len(measured["test_accuracy"]) >= tested
    for tag, points in measured.items():
        assert [step for step, _ in points] == [found["global_step"] for found in evaluations]
        np.testing.assert_allclose(
            [v for _, v in points], [found[tag] for found in evaluations], rtol=1e-5
        )

    for k in (0, 1):
        (graph,) = assert_points_are_means(finished, k, examples)
        assert len(shown(finished.results / f"worker-{k}")[0]["loss"]) >= 50
        boxes = collections.Counter(node.name.partition("/")[0] for node in graph.node)
        assert {"data", "pull", "push", "GradientDescent", "events"} <= set(boxes)
        assert {"gradient", "while"} & set(boxes)  # a window's gradients are in its loop
        assert len(boxes) < len(graph.node) / 8
        alone = [name for name, count in boxes.items() if count == 1]
        assert len(alone) <= 8, alone


@pytest.mark.parametrize("example", ["Actor-Learner", "One-Network-per-Device", "TensorFlow-2"])
@pytest.mark.slow("complete runs")
def test_a_default_run_with_its_own_loop(default_run, example):
    finished = default_run(example)
    learner = {"chief-0"} if example == "Actor-Learner" else set()
    assert_runs(finished, {"worker-0", "worker-1", "test"} | learner)
    points = 0
    for k in (0, 1):
        assert not assert_points_are_means(finished, k, 32)  # no graph
        points += len(shown(finished.results / f"worker-{k}")[0]["loss"])
    assert points >= 50
    measured, _ = shown(finished.results / "test")
    evaluations = trace.read_evaluations(finished.results)
    assert [step for step, _ in measured["test_accuracy"]] == [
        found["global_step"] for found in evaluations
    ]
    if example == "TensorFlow-2":
        assert len(evaluations) >= 10  # of 75, on a slow machine
    else:
        assert len(evaluations) == 1  # at the end


@pytest.mark.parametrize(
    ("dear", "link_mbit", "points", "share"),
    [(0.001, None, 50, 0.06), (0.01, None, 11, 0.11), (0.005, 100, 7, 0.04)],
)
def test_evaluations_are_evenly_spaced(monkeypatch, dear, link_mbit, points, share):
    """A second of training, in which hooks see every fourth of 400 updates; each
    evaluation takes `dear` seconds."""
    now, found = [0.0], []

    def measure(session, sample=None):
        now[0] += dear
        found.append(step)
        return {"global_step": step, "test_accuracy": 0.5}

    monkeypatch.setattr(evaluation, "time", Namespace(time=lambda: now[0]))
    hook = object.__new__(evaluation.Evaluation)  # without a graph
    flags = Namespace(steps=400, workers=2, link_mbit=link_mbit, target_accuracy=None)
    hook._task = Namespace(flags=flags)
    hook._schedule, hook._measure = evaluation.Schedule(flags), measure
    hook._sample, hook._best = evaluation.SAMPLE, None
    for step in range(4, 401, 4):
        now[0] += 0.01
        hook.after_run(Namespace(session=None), Namespace(results=step))
    assert abs(len(found) - points) <= 1
    assert (len(found) - 1) * dear / now[0] < share  # the first one, with the set-up, is free
    assert max(b - a for a, b in itertools.pairwise(found)) <= 2 * 400 / points


def test_a_long_run_has_a_point_every_second(tmp_path):
    flags = Namespace(results=str(tmp_path), steps=10**8, batch_size=32, workers=1)
    board = Board(flags, 0)
    with tf.Graph().as_default():
        board.open()
    event = {"loss": 1.0, "staleness": 0, "pull": 0.0, "compute": 0.25, "push": 0.0, "examples": 32}
    times = [100.25 + 0.25 * i for i in range(20)]  # five seconds
    board.note([event | {"time": t, "global_step": i + 1} for i, t in enumerate(times)], True)
    scalars, _ = shown(tmp_path / "worker-0")
    assert [step for step, _ in scalars["loss"]] == [4, 8, 12, 16, 20]
    assert [value for _, value in scalars["speed/examples_per_second"]] == [128.0] * 5
