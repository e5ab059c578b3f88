"""Sparse-Embeddings: each row is updated as its formula says; only the rows of a batch travel."""

import argparse
import functools
import hashlib
import http.server
import importlib
import json
import re
import shutil
import signal
import sys
import threading
import zipfile
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from conftest import ENDLESS, ROOT, copy_example, kill_and_see_it_back, wait_for_checkpoint
from machine import seconds
from replays import EXACT
from schemes import SparseEmbeddings
from sklearn.metrics import roc_auc_score

from common.launch import prepare
from common.training import checkpoints

EXAMPLE, BATCH = "Sparse-Embeddings", 8
SMALL = [
    "--planted_users",
    30,
    "--planted_items",
    370,
    "--planted_ratings",
    2000,
    "--width",
    4,
    "--batch_size",
    BATCH,
]
LOOP = "        sess.run(step)  # one step: batch; pull; gradient; push\n"
# Each step writes what it has seen: of each row, how often it had been updated when it was pulled,
# and when it was updated.
RECORD = """        said = {"ids": ids, "values": values, "number": update.number,
                "count": pull.count, "numbers": rows.numbers, "seen": seen, "now": times.now}
        _, found = sess.run([step, said])
        plain = {key: [each.tolist() for each in one] if isinstance(one, list) else one.tolist()
                 for key, one in found.items()}
        with open(f"{flags.results}/seen-{task.index}.jsonl", "a") as file:
            file.write(json.dumps(plain) + "\\n")
"""


@pytest.fixture
def own(monkeypatch):
    """The modules of the folder. Other folders have modules of the same names."""
    names = ("about", "ratings", "network")
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(ROOT / EXAMPLE)
    yield SimpleNamespace(**{name: importlib.import_module(name) for name in names})
    for name in names:
        sys.modules.pop(name, None)


def first_values(own, flags) -> list[np.ndarray]:
    """The first values of weights, bias and table."""
    one_block = argparse.Namespace(**vars(flags) | {"ps": 1})
    with tf.Graph().as_default(), tf.Session() as session:
        variables = [*own.network.dense(one_block), own.network.table(one_block)]
        session.run(tf.global_variables_initializer())
        return session.run(variables)


@pytest.fixture
def recording(tmp_path):
    source = (ROOT / EXAMPLE / "worker.py").read_text()
    assert source.count(LOOP) == 1
    changed = source.replace(LOOP, RECORD).replace(
        "import network  #", "import json\n\nimport network  #"
    )
    return copy_example(EXAMPLE, tmp_path / "mine", worker=changed)


class Row:
    """The values of one row, or of the dense parameters, after 0, 1, 2, ... updates."""

    def __init__(self, flags, start: np.ndarray):
        self.values, self.scheme = [start], SparseEmbeddings(flags, None, start)
        self.pushed: dict[int, np.ndarray] = {}

    def push(self, at: int, g: np.ndarray) -> None:
        """Update number `at` of this row adds g; updates may come in another order."""
        assert at not in self.pushed  # each once
        self.pushed[at] = g

    def after(self, updates: int) -> np.ndarray:
        while len(self.values) <= updates:
            k = len(self.values) - 1
            self.values.append(self.scheme.update(self.values[k], self.pushed[k], 0, None))
        return self.values[updates]


def gradients(dense, rows, values):
    """Of half the mean squared error, from the formula in network.py.

    dense: weights [3 width], then the bias. rows: [batch, 2, width].
    """
    u, v = rows[:, 0], rows[:, 1]
    w, b = dense[:-1], dense[-1]
    a, c, d = np.split(w, 3)
    x = np.concatenate([u * v, u, v], axis=1)
    e = (x @ w + b - values)[:, None] / len(values)
    return np.append((e * x).sum(0), e.sum()), np.stack([e * (a * v + c), e * (a * u + d)], 1)


@pytest.mark.usefixtures("two_cores")
@pytest.mark.parametrize(("optimizer", "rate"), [("adagrad", 0.3), ("sgd", 0.1)])
def test_each_row_is_what_its_formula_says(run, own, recording, optimizer, rate):
    """Three workers, two ps. Many rows occur several times in a batch, and some never."""
    finished = run(EXAMPLE, *SMALL, "--workers", 3, "--steps", 300, "--optimizer", optimizer,
                   "--zipf", 1.5, "--learning_rate", rate, root=recording)  # fmt: skip
    flags = argparse.Namespace(**finished.summary["flags"])
    weights, bias, table = finished.parameters
    steps = []
    for k in range(3):
        lines = (finished.results / f"seen-{k}.jsonl").read_text().splitlines()
        steps += map(json.loads, lines)
    steps.sort(key=lambda step: step["number"])
    assert [step["number"] for step in steps] == list(range(300))
    first = first_values(own, flags)
    dense = Row(flags, np.append(*first[:2]).astype("d"))
    rows = [Row(flags, one.astype("d")) for one in first[2]]
    firsts, twice = [0, 200], 0  # the first row of each block
    for step in steps:
        numbers, seen, now = (
            np.concatenate([np.array(part, int) + add for part, add in zip(step[key], adds)])
            for key, adds in (("numbers", firsts), ("seen", [0, 0]), ("now", [0, 0]))
        )
        ids, values = np.array(step["ids"]), np.array(step["values"])
        assert sorted(numbers) == sorted(set(ids.ravel()))
        twice += len(numbers) < ids.size
        had = dict(zip(numbers, seen))
        pulled = np.array([[rows[i].after(had[i]) for i in pair] for pair in ids])
        g, h = gradients(dense.after(step["count"]), pulled, values)
        dense.push(step["number"], g)
        total = {i: np.zeros(4) for i in numbers}
        for pair, parts in zip(ids, h):
            for i, part in zip(pair, parts):
                total[i] = total[i] + part
        for i, at in zip(numbers, now):
            rows[i].push(at, total[i])
    assert twice > 100
    ends = np.array([row.after(len(row.pushed)) for row in rows])
    never = [not row.pushed for row in rows]
    assert any(never) and (table[never] == first[2][never]).all()
    assert np.abs(table - first[2]).max() > 0.1  # the others have learnt
    assert np.abs(table - ends).max() < EXACT * np.abs(ends).max()
    assert np.abs(np.append(weights, bias) - dense.after(300)).max() < EXACT * np.abs(bias)
    events = [event for k in range(3) for event in finished.events(k)]
    assert sum(event["rows"] for event in events) == sum(len(row.pushed) for row in rows)
    stale = sum(
        np.sum(np.array(a) - b) for step in steps for a, b in zip(step["now"], step["seen"])
    )
    assert sum(event["row_staleness"] for event in events) == stale


def test_a_step_sends_little_more_than_its_rows(run):
    """At most 1.5 times their bytes, there and back, and those of their numbers."""
    table = ["--planted_items", 6000, "--planted_ratings", 20_000]
    steps = 1500
    finished = run(EXAMPLE, *table, "--steps", steps, "--evaluate_every", steps, "--workers", 1,
                   "--checkpoint_every", 10**6)  # fmt: skip
    sent = finished.summary["bytes_per_step"]
    if sent is None:
        pytest.skip("no private network, so nobody counts the bytes")
    events = finished.events(0)
    rows = np.mean([event["rows"] for event in events])
    assert 80 < rows <= 128
    width, dense = 32, 3 * 32 + 1
    own = rows * (2 * 4 * width + 4) + 2 * 4 * dense
    assert own < sent < 1.5 * own
    assert all(event["row_staleness"] == 0 for event in events)


def test_the_same_is_learned_if_all_travels_or_threads_share_it(run):
    """With one worker, or one thread, there is only one order of the updates."""
    flags = [*SMALL, "--steps", 60]
    rows = run(EXAMPLE, *flags, "--workers", 1).parameters
    whole = run(EXAMPLE, *flags, "--workers", 1, "--dense")
    shared = run(EXAMPLE, *flags, "--threads", 1).parameters
    several = run(EXAMPLE, *flags, "--threads", 2)
    saved = checkpoints.values(checkpoints.newest(str(several.results / "checkpoints")))
    assert not [name for name in saved if "Adagrad_" in name]  # one G for all threads
    assert "warning: a batch uses only rows of embeddings/part_0, but all of it" in whole.output
    for a, b, c in zip(rows, whole.parameters, shared, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(c, a, rtol=1e-5, atol=1e-6)


def test_a_run_resumes_with_another_number_of_ps(run, tmp_path):
    flags = [*SMALL, "--checkpoint_dir", tmp_path / "saved"]
    first = run(EXAMPLE, *flags, "--steps", 60, "--ps", 2)
    shutil.copytree(tmp_path / "saved", tmp_path / "two")
    same = run(EXAMPLE, *flags, "--steps", 60, "--ps", 3)
    newest = [checkpoints.newest(str(tmp_path / name)) for name in ("two", "saved")]
    saved = [checkpoints.values(path) for path in newest]
    assert {"embeddings", "embeddings/Adagrad", "updates"} <= saved[0].keys() == saved[1].keys()
    for name, value in saved[0].items():
        np.testing.assert_array_equal(value, saved[1][name], err_msg=name)
    for a, b in zip(first.parameters, same.parameters, strict=True):
        np.testing.assert_array_equal(a, b)
    on = run(EXAMPLE, *flags, "--steps", 90, "--ps", 1)
    assert "continues at update 60 of 90" in on.output
    assert sum(len(on.events(k)) for k in range(2)) == 30


@pytest.mark.slow("a task is killed")
@pytest.mark.parametrize(("job", "index"), [("ps", 1), ("worker", 1)])
def test_a_killed_task_comes_back(start, job, index):
    process, where = start(EXAMPLE, *SMALL, "--steps", ENDLESS, "--checkpoint_every", 20)
    wait_for_checkpoint(where, 40)
    kill_and_see_it_back(where, job, index)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=seconds(60))
    said = (where / "logs" / "worker-0.log").read_text()
    assert ("lost a parameter server: continues at update" in said) == (job == "ps")


def test_a_row_that_does_not_exist_ends_the_run_with_a_sentence(run, tmp_path):
    source = (ROOT / EXAMPLE / "worker.py").read_text()
    source = source.replace("copies.rows(table, ids)", "copies.rows(table, ids + 1)")
    root = copy_example(EXAMPLE, tmp_path / "mine", worker=source)
    finished = run(EXAMPLE, *SMALL, "--steps", 10**6, root=root, ok=False)
    assert finished.code == 2
    said = r"error: worker \d: a batch names row 400 of embeddings, which has rows 0 to 399: look"
    assert re.search(said, finished.output)


def test_the_planted_ratings_are_what_their_formula_says(own):
    deviation = np.sqrt(2 * 0.2**2 + 0.5**2 + 0.3**2)
    even = own.ratings.plant(2000, 2000, 200_000, 0.0, 3)
    assert even.values.mean() == pytest.approx(3.5, abs=0.02)
    assert even.values.std() == pytest.approx(deviation, rel=0.03)
    flags = argparse.Namespace(data="planted", planted_users=200, planted_items=2000,
                               planted_ratings=100_000, zipf=1.1, seed=3)  # fmt: skip
    found = own.ratings.of(flags)
    assert found.ids[:, 0].max() < 200 <= found.ids[:, 1].min() and found.ids.max() < 2200
    often = np.sort(np.bincount(found.ids[:, 1]))[::-1]
    wanted = 100_000 / np.arange(1, 2001) ** 1.1 / (1 / np.arange(1, 2001) ** 1.1).sum()
    np.testing.assert_allclose(often[:20], wanted[:20], rtol=0.15)
    train, test = found.part(False), found.part(True)
    assert (len(train.values), len(test.values)) == (90_000, 10_000)
    control = own.ratings.controls(flags)
    best, biases, mean = control.best, control.biases, control.mean
    assert best.rmse == pytest.approx(0.3, rel=0.03)
    assert best.rmse < biases.rmse < mean.rmse < deviation * 1.2
    assert mean.auc == 0.5 < biases.auc < best.auc < 1


def test_the_auc_is_that_of_scikit_learn(own):
    rng = np.random.default_rng(0)
    values = rng.normal(size=200).astype("f")
    predicted = np.round(values + rng.normal(size=200), 1).astype("f")  # some are equal
    with tf.Graph().as_default(), tf.Session() as session:
        found = session.run(own.network.auc(tf.constant(predicted), tf.constant(values)))
        same = session.run(own.network.auc(tf.constant(predicted), tf.ones([200])))
    assert found.mean() == pytest.approx(roc_auc_score(values > values.mean(), predicted), rel=1e-5)
    assert same.tolist() == [0] * 200  # there are no pairs


def test_a_csv_has_users_items_and_ratings(own, tmp_path):
    file = tmp_path / "mine.csv"
    lines = [f"{'ann' if k % 2 else 'bob'},film {k % 5},{k % 3 + 0.5}" for k in range(20)]
    file.write_text("user,item,rating\n" + "\n".join(lines) + "\n")
    found = own.ratings.of(argparse.Namespace(data=str(file)))
    assert (found.users, found.items) == (2, 5)
    names = ["ann", "bob", *[f"film {k}" for k in range(5)]]
    read = sorted(f"{names[u]},{names[i]},{v}" for (u, i), v in zip(found.ids, found.values))
    assert read == sorted(lines)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("user,item,rating\n" + "a,b,1\n" * 9, "needs at least ten ratings"),
        ("user,item,rating\n\na,b\n" + "a,b,1\n" * 10, "line 3 needs three columns: user, item"),
        ("user,item,rating\n" + "a,b,good\n" * 10, "the third column must hold numbers"),
        ("user,item,rating\n" + "a,b,inf\n" * 10, "the third column must hold numbers"),
    ],
)
def test_a_bad_csv_is_one_sentence(own, tmp_path, capsys, text, words):
    file = tmp_path / "bad.csv"
    file.write_text(text)
    with pytest.raises(SystemExit) as ended:
        own.ratings.of(argparse.Namespace(data=str(file)))
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: --data {file}: ") and words in said


class Server(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


def test_movielens_is_downloaded_and_read(own, tmp_path, monkeypatch):
    """The format of MovieLens 100K: user, item, rating and time, with tabs."""
    lines = "".join(f"{k % 7 + 1}\t{k % 3 + 240}\t{k % 5 + 1}\t88125{k:04}\n" for k in range(50))
    folder = tmp_path / "there"
    folder.mkdir()
    with zipfile.ZipFile(folder / "ml-100k.zip", "w") as archive:
        archive.writestr("ml-100k/u.data", lines)
        archive.writestr("ml-100k/README", "for research")
    data = (folder / "ml-100k.zip").read_bytes()
    handler = functools.partial(Server, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        source = (url, {"ml-100k.zip": (hashlib.md5(data).hexdigest(), len(data))})
        monkeypatch.setattr(own.about, "MOVIELENS", source)
        monkeypatch.setenv("DATA_DIR", str(tmp_path / "cache"))
        flags = argparse.Namespace(data="movielens", data_url=None)
        prepare.fetch(flags, lambda text: None, {"movielens": source})
        server.shutdown()
    found = own.ratings.of(flags)
    assert (found.users, found.items, len(found.values)) == (7, 3, 50)
    assert sorted(found.values.tolist()) == sorted(float(k % 5 + 1) for k in range(50))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--dense", "--threads", 2], ("dense.py and threads.py cannot both run",)),
        (["--batch_size", 0], ("--batch_size 0", "give 1 or more")),
    ],
)
def test_flags_that_do_not_fit_are_refused(run, flags, words):
    finished = run(EXAMPLE, *SMALL, *flags, ok=False)
    assert finished.code == 2 and all(word in finished.output for word in words)


def test_only_what_is_downloaded_has_another_source(run):
    finished = run(EXAMPLE, "--data_url", "http://x", ok=False)
    assert finished.code == 2 and "--data_url: planted is not downloaded" in finished.output
