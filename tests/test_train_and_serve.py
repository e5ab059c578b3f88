"""Train-and-Serve: preprocessing, the kept parameters, and the model that is served."""

import argparse
import contextlib
import csv
import importlib
import io
import json
import subprocess
import sys

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from conftest import ROOT, environment

FOLDER = ROOT / "Train-and-Serve"
sys.path.append(str(FOLDER))
import make_flats  # noqa: E402

ROWS = list(csv.DictReader(open(FOLDER / "flats.csv")))
NUMBERS, WORDS = ("area", "rooms", "year", "distance"), ("district", "heating", "balcony")
PART = np.arange(len(ROWS)) % 10


def features(rows: list[dict]) -> np.ndarray:
    """In NumPy, with what the training part says."""
    train, found = [row for row, part in zip(ROWS, PART) if part > 1], []
    for name in NUMBERS:
        known = np.array([float(row[name]) for row in train if row[name]])
        gap = np.array([not row[name] for row in rows])
        value = np.array([float(row[name] or "nan") for row in rows])
        found += [np.where(gap, 0, (value - known.mean()) / known.std()), gap]
    for name in WORDS:
        for word in sorted({row[name] for row in train if row[name]}):
            found.append([row[name] == word for row in rows])
    return np.array(found, float).T


def rents(rows: list[dict]) -> np.ndarray:
    return np.array([float(row["rent"]) for row in rows])


def predict(params: list[np.ndarray], rows: list[dict]) -> np.ndarray:
    x = features(rows)
    for weights, biases in zip(params[0:4:2], params[1:4:2]):
        x = np.maximum(x @ weights + biases, 0)
    known = rents([row for row, part in zip(ROWS, PART) if part > 1])
    return (x @ params[4] + params[5])[:, 0] * known.std() + known.mean()


TEST = [row for row, part in zip(ROWS, PART) if part == 0]


def test_the_table_is_what_its_script_makes():
    made = io.StringIO()
    with contextlib.redirect_stdout(made):
        writer = csv.DictWriter(sys.stdout, make_flats.flats(1)[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(make_flats.flats())
    assert made.getvalue() == (FOLDER / "flats.csv").read_text()
    gaps = np.mean([value == "" for row in ROWS for value in row.values()])
    assert 0.04 < gaps < 0.07


def test_the_run_ends_by_itself_and_keeps_the_best(default_run):
    finished = default_run("Train-and-Serve")
    summary = finished.summary
    assert 0 < summary["best_step"] < summary["global_step"] < summary["flags"]["steps"]
    error = np.abs(predict(finished.parameters, TEST) - rents(TEST))
    assert summary["test_MAE"] == pytest.approx(error.mean(), rel=1e-4)
    # Better than a linear model of the same features, and not better than the formula itself.
    train = [row for row, part in zip(ROWS, PART) if part > 1]
    one = np.ones([len(ROWS), 1])
    x, test = (np.hstack([features(rows), one[: len(rows)]]) for rows in (train, TEST))
    linear = np.abs(test @ np.linalg.lstsq(x, rents(train), rcond=None)[0] - rents(TEST)).mean()
    noise = make_flats.NOISE * np.sqrt(2 / np.pi)
    best = np.abs([make_flats.best(row) - float(row["rent"]) for row in TEST]).mean()
    assert noise < best < 0.6 * linear
    assert 0.95 * best < summary["test_MAE"] < 0.8 * linear


# Without this collection, in TensorFlow 2.
SERVE = """
import csv, json, sys
import numpy as np, tensorflow as tf
served, checkpoint, table = sys.argv[1:]
rows = list(csv.DictReader(open(table)))
numbers, words = ("area", "rooms", "year", "distance"), ("district", "heating", "balcony")
columns = {name: tf.constant([float(row[name] or "nan") for row in rows]) for name in numbers}
columns |= {name: tf.constant([row[name] for row in rows]) for name in words}
model = tf.saved_model.load(served).signatures["serving_default"]
found = model(**columns)["rent"].numpy().tolist()
kept = tf.train.load_checkpoint(checkpoint)
names = [f"{kind}_{i}" for i in range(3) for kind in ("weights", "biases")]
arrays = [kept.get_tensor(name).tolist() for name in names]
assert not [name for name in sys.modules if name.split(".")[0] in ("common", "network", "table")]
print(json.dumps([found, arrays, int(kept.get_tensor("global_step"))]))
"""


def exported(folder, tmp_path) -> subprocess.CompletedProcess:
    command = [sys.executable, str(FOLDER / "export.py"), str(folder)]
    return subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True)


def test_tensorflow_2_serves_the_model_and_reads_the_checkpoint(default_run, tmp_path):
    finished = default_run("Train-and-Serve")
    made = exported(finished.results, tmp_path)
    assert made.returncode == 0, made.stderr
    assert made.stdout.strip() == f"the model is in {finished.results / 'served'}"
    # Also a word that the training part does not have.
    rows = [*TEST, TEST[0] | {"district": "moon"}]
    with open(tmp_path / "test.csv", "w") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    checkpoint = finished.results / "checkpoints" / "best"
    process = subprocess.run(
        [sys.executable, "-c", SERVE, finished.results / "served", checkpoint, "test.csv"],
        cwd=tmp_path, env=environment(), capture_output=True, text=True,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    found, arrays, count = json.loads(process.stdout.splitlines()[-1])
    np.testing.assert_allclose(found, predict(finished.parameters, rows), rtol=1e-4)
    for array, parameter in zip(arrays, finished.parameters, strict=True):
        np.testing.assert_array_equal(np.array(array, np.float32), parameter)
    assert count == finished.summary["best_step"]
    again = exported(finished.results, tmp_path)  # replaces the first one
    assert again.returncode == 0, again.stderr
    assert (finished.results / "served" / "saved_model.pb").exists()


@pytest.mark.parametrize(
    ("left", "words"),
    [
        ((), "has no summary.json: give the results folder of a run that has ended"),
        (("summary.json",), "has no parameters.npz"),
        (("summary.json", "parameters.npz"), "learnt.json is missing"),
    ],
)
def test_a_folder_that_cannot_be_exported_is_a_sentence(tmp_path, left, words):
    for name in left:
        (tmp_path / name).write_text(json.dumps({"flags": {"checkpoint_dir": "nowhere"}}))
    process = exported(tmp_path, tmp_path)
    assert process.returncode == 2
    assert process.stderr.splitlines()[-1].startswith("error: ") and words in process.stderr
    assert not (tmp_path / "served").exists()


GOOD = "district,heating,balcony,rooms,year,distance,area,rent\n"
LINE = "south,gas,yes,3,1960,2.7,90,1165\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "its header has no column 'district'"),
        (GOOD.replace("year", "built") + 10 * LINE, "its header has no column 'year'"),
        (GOOD.replace(",year", ", year") + 10 * LINE, "its header has a space before or after"),
        (GOOD + LINE + 9 * LINE.replace("gas", " gas"), "example 1 has a space before or after"),
        (GOOD + LINE + 9 * LINE.replace("gas", '5" pipe'), "example 1 is no line of CSV"),
        (GOOD + LINE + 9 * LINE.replace("1960", "1_960"), 'example 1 has "1_960" as its year'),
        ((GOOD + 10 * LINE).replace("\n", "\r"), "its header is no line of CSV"),
        (GOOD + 9 * LINE, "needs at least ten examples, has 9"),
        (GOOD + 9 * LINE + "south,gas,yes,3,1960,2.7,90\n", "example 9 has 7 values for 8 columns"),
        (GOOD + LINE + LINE.replace("1960", "old") + 9 * LINE, 'example 1 has "old" as its year'),
        (GOOD + 9 * LINE + LINE.replace("1960", "inf"), 'example 9 has "inf" as its year'),
        (GOOD + 9 * LINE + LINE.replace("1165", ""), 'example 9 has "" as its rent'),
    ],
)
def test_a_bad_table_is_a_sentence(run, tmp_path, text, words):
    path = tmp_path / "mine.csv"
    path.write_bytes(text.encode())
    finished = run("Train-and-Serve", "--data", path, ok=False)
    assert finished.code == 2
    assert words in finished.output and f"error: --data {path}" in finished.output


def test_a_run_continues_only_with_its_own_data(run, tmp_path):
    """Otherwise the inputs of the network would mean something else, without a word."""
    folder = tmp_path / "checkpoints"
    run("Train-and-Serve", "--steps", 20, "--checkpoint_dir", folder)
    other = tmp_path / "other.csv"
    lines = (FOLDER / "flats.csv").read_text().splitlines()
    other.write_text("\n".join(lines[:1500]) + "\n")
    finished = run(
        "Train-and-Serve", "--steps", 40, "--checkpoint_dir", folder, "--data", other, ok=False
    )
    assert finished.code == 2 and "were trained on other data" in finished.output
    more = run("Train-and-Serve", "--steps", 40, "--checkpoint_dir", folder)
    assert more.summary["global_step"] == 40


@pytest.fixture
def table(monkeypatch):
    """The module of the folder; Your-Own has one of that name, too."""
    monkeypatch.delitem(sys.modules, "table", raising=False)
    monkeypatch.syspath_prepend(FOLDER)
    yield importlib.import_module("table")
    sys.modules.pop("table")


def test_a_file_in_another_encoding_is_a_sentence(table, tmp_path, capsys):
    path = tmp_path / "mine.csv"
    path.write_bytes((GOOD + 10 * LINE.replace("south", "süd")).encode("latin-1"))
    with pytest.raises(SystemExit):
        table.read(str(path))
    assert "is not UTF-8 (invalid start byte at byte" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["living area", "2nd", "class", "self", "Fläche"])
def test_a_name_that_no_call_can_have_is_refused_before_training(
    table, tmp_path, capsys, monkeypatch, name
):
    path = tmp_path / "mine.csv"
    path.write_text((GOOD + 10 * LINE).replace("area", name))
    monkeypatch.setattr(table, "NUMBERS", [name, "rooms", "year", "distance"])
    with pytest.raises(SystemExit):
        table.read(str(path))
    assert f"rename the column {name!r}" in capsys.readouterr().err


def test_other_columns_are_another_model(table, tmp_path, capsys, monkeypatch):
    """Also in another order: the inputs of the network would be others."""
    path = str(FOLDER / "flats.csv")
    table.keep(str(tmp_path), table.learn(path))
    table.keep(str(tmp_path), table.learn(path))
    assert (tmp_path / "best" / table.FILE).exists()
    monkeypatch.setattr(table, "NUMBERS", table.NUMBERS[::-1])
    table.learn.cache_clear()
    with pytest.raises(SystemExit):
        table.keep(str(tmp_path), table.learn(path))
    assert "were trained on other data, or on other columns" in capsys.readouterr().err
    (tmp_path / table.FILE).unlink()
    (tmp_path / "model.ckpt-3.index").touch()
    with pytest.raises(SystemExit):
        table.keep(str(tmp_path), table.learn(path))


@pytest.mark.parametrize("blank", [False, True])
def test_the_pipeline_delivers_the_shard(table, tmp_path, blank):
    """Each worker gets its own lines of the training part, each once in an epoch, as features. An
    empty line, wherever it is, changes nothing."""
    path = tmp_path / "flats.csv"
    lines = (FOLDER / "flats.csv").read_text().splitlines()
    for at in (500, 21, 1, 0) if blank else ():
        lines.insert(at, "")
    path.write_text("\r\n".join(lines) + "\r\n\n" if blank else "\n".join(lines))
    flags = argparse.Namespace(data=str(path), batch_size=400, seed=0, delay=None)
    train = [row for row, part in zip(ROWS, PART) if part > 1]
    for worker in range(2):
        with tf.Graph().as_default(), tf.Session() as session:
            tf.train.get_or_create_global_step()
            batch = table.batches(flags, worker, 2, table.learn(flags.data))()
            session.run(tf.tables_initializer())
            found = [session.run(batch) for _ in range(2)]
        x, y = (np.concatenate(each) for each in zip(*found))
        mine = train[worker::2]
        # Examples come in another order: a fixed mix of each one's numbers identifies it.
        mix = np.random.default_rng(0).normal(size=x.shape[1])
        by_rent = np.lexsort([x @ mix, y]), np.lexsort([features(mine) @ mix, rents(mine)])
        np.testing.assert_array_equal(y[by_rent[0]], rents(mine)[by_rent[1]])
        np.testing.assert_allclose(x[by_rent[0]], features(mine)[by_rent[1]], atol=1e-4)
