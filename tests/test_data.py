"""The data: each example goes to exactly one worker, and each file is complete or missing."""

import argparse
import contextlib
import gzip
import hashlib
import http.server
import io
import re
import subprocess
import sys
import tarfile
import threading
import time

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from bad_input import arrays
from conftest import ROOT, environment, initialise
from machine import seconds
from sklearn.datasets import load_digits

from common import data, datasets, models
from common.datasets import download
from common.flags import parser
from common.launch import prepare

tf.disable_eager_execution()
DEFAULTS = {"workers": 2, "ps": 1, "steps": 10, "learning_rate": 0.1}


def flags(*given):
    return parser(DEFAULTS).parse_args([str(value) for value in given])


def one_sentence(text: str, *words: str) -> str:
    assert re.fullmatch(r"error: .+\n", text), text
    for word in words:
        assert word in text
    return text


@pytest.fixture
def npz(tmp_path):
    """Writes an .npz of `arrays` with some of them replaced, or left out if None."""

    def _npz(name="set.npz", base=None, **changed):
        content = (base or arrays()) | changed
        path = tmp_path / name
        np.savez(path, **{key: value for key, value in content.items() if value is not None})
        return path

    return _npz


# Shards


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
@pytest.mark.parametrize("name", ["digits", "npz"])
def test_shards_are_every_nth_example_disjoint_and_together_complete(npz, name, workers):
    options = flags("--data", name if name == "digits" else npz())
    x, labels = data.load(options, "train")
    seen = np.full(len(labels), -1)
    for worker in range(workers):
        own, own_labels = data.load(options, "train", worker, workers)
        numbers = np.arange(worker, len(labels), workers)  # k, k + n, k + 2n, ...
        np.testing.assert_array_equal(own, x[numbers])
        np.testing.assert_array_equal(own_labels, labels[numbers])
        assert (seen[numbers] == -1).all()
        seen[numbers] = worker
    assert (seen >= 0).all()


def test_a_file_that_holds_one_shard(npz, capsys):
    """Each machine may have only its own worker's examples."""
    whole = data.load(flags("--data", npz()), "train", 1, 2)
    x, labels = data.load(flags("--data", npz()), "train")
    own = {"x_train": x[1::2], "y_train": labels[1::2], "shard": np.array([1, 2])}
    options = flags("--data", npz("shard.npz", **own), "--workers", 2)
    for found, expected in zip(data.load(options, "train", 1, 2), whole):
        np.testing.assert_array_equal(found, expected)
    assert datasets.shard(options, 1, 2) == len(whole[1])
    prepare.check(options)
    with pytest.raises(SystemExit):
        data.load(options, "train", 0, 2)
    said = capsys.readouterr().err
    assert "shard.npz holds the shard of worker 1 of 2, but this is worker 0 of 2" in said
    for wrong in ([2, 2], [0.0, 2.0], [1]):
        with pytest.raises(SystemExit):
            data.load(flags("--data", npz(shard=np.array(wrong))), "train", 1, 2)
        assert "shard must be [k, n]" in capsys.readouterr().err


def test_the_recipe_for_shards_gives_what_the_whole_file_gives(npz, monkeypatch):
    """As Several-Machines/MACHINES.md says."""
    text = (ROOT / "Several-Machines" / "MACHINES.md").read_text()
    (recipe,) = re.findall(r"```python\n(import numpy.*shard=.*?)```", text, re.S)
    whole = npz("mine.npz", base=arrays(40))
    monkeypatch.chdir(whole.parent)
    exec(recipe, {})
    for k in (0, 1):
        found = data.load(flags("--data", f"shard-{k}.npz"), "train", k, 2)
        for mine, expected in zip(found, data.load(flags("--data", whole), "train", k, 2)):
            np.testing.assert_array_equal(mine, expected)


def test_digits_are_scikit_learns_shuffled_with_every_fifth_for_testing():
    """The order is documented, so this recomputes it: NumPy's generator with seed 0."""
    source = load_digits()
    order = np.random.default_rng(0).permutation(1797)
    test = np.arange(1797) % 5 == 0
    for part, chosen in (("train", order[~test]), ("test", order[test])):
        x, labels = data.load(flags("--seed", 3), part)  # --seed does not change the split
        assert (x.dtype, labels.dtype) == (np.float32, np.int64)
        assert (x.min(), x.max()) == (0, 1)
        np.testing.assert_array_equal(x, source.images[chosen] / 16)
        np.testing.assert_array_equal(labels, source.target[chosen])


def class_counts(labels, workers: int) -> np.ndarray:
    """[workers, 10]: how many examples of each class each worker's shard holds."""
    return np.stack([np.bincount(labels[k::workers], minlength=10) for k in range(workers)])


def test_eight_shards_of_the_digits_hold_about_as_many_of_each_class():
    """1,437 examples in random order: 18 of each class in a shard, give or take 4."""
    shards = [data.load(flags(), "train", k, 8)[1] for k in range(8)]
    counts = np.stack([np.bincount(labels, minlength=10) for labels in shards])
    expected = counts.sum(axis=0) / 8
    assert (np.abs(counts - expected) < 4 * np.sqrt(expected)).all()
    assert counts.min() > expected.mean() / 3
    published = class_counts(load_digits().target[np.arange(1797) % 5 != 0], 8)
    assert published.max() / published.min() > 5  # what the published order would give


@pytest.mark.parametrize("labels", [np.arange(800) // 80, np.arange(800) % 10])
def test_the_classes_of_an_npz_are_spread_over_shards_and_over_each_shard(npz, labels):
    """Whether the file is sorted by class, or its classes repeat. In the file's order, a shard
    would begin with one class, or hold only two."""
    options = flags("--data", npz(base=arrays(800, 10, classes=10) | {"y_train": labels}))
    counts = class_counts(data.load(options, "train")[1], 5)
    assert (np.abs(counts - 16) < 4 * np.sqrt(16)).all()
    _, mine = data.load(options, "train", 0, 5)
    assert len(set(mine[:40])) >= 8


def test_synthetic_is_learnable_and_depends_on_the_seed():
    x, labels = data.load(flags("--data", "synthetic"), "train")
    assert x.dtype == np.float32
    assert x.min() >= 0
    assert x.max() <= 1
    means = np.stack([x[:2000][labels[:2000] == c].mean(axis=0) for c in range(10)])
    test, test_labels = data.load(flags("--data", "synthetic"), "test")
    nearest = ((test[:200, None] - means) ** 2).sum(axis=2).argmin(axis=1)
    assert (nearest == test_labels[:200]).mean() > 0.9  # the test set has the same prototypes
    assert not np.array_equal(test[:100], x[:100])
    again, _ = data.load(flags("--data", "synthetic"), "test")
    other, _ = data.load(flags("--data", "synthetic", "--seed", 1), "test")
    np.testing.assert_array_equal(again, test)
    assert not np.array_equal(other, test)


@pytest.mark.parametrize("name", ["digits", "synthetic", "npz", "images.npz"])
def test_description_and_data_agree(npz, name):
    if name == "npz":
        name = npz()
    elif name == "images.npz":
        name = npz(base=arrays(shape=(4, 3, 2), classes=4))
    options = flags("--data", name)
    x, labels = data.load(options, "train")
    assert datasets.describe(options) == (x.shape[1:], labels.max() + 1, len(labels)) == (
        x.shape[1:], len(np.unique(labels)), len(x))  # fmt: skip


def shuffled(*arrays):
    """The training set of an .npz, in the documented order: NumPy's generator with seed 0."""
    order = np.random.default_rng(0).permutation(len(arrays[0]))
    return [array[order] for array in arrays]


@pytest.mark.parametrize(
    ("kind", "loaded"),
    [(np.float16, np.float32), (np.float32, np.float32), (np.float64, np.float32),
     (np.int8, np.int32), (np.uint16, np.int32), (np.int32, np.int32),
     (np.uint32, np.int64), (np.int64, np.int64), (np.uint64, np.int64)],
)  # fmt: skip
def test_the_numbers_of_an_npz_are_unchanged(npz, kind, loaded):
    """Whole numbers stay whole, and nothing but bytes is scaled."""
    given, labels = np.array([[0, 1], [100, 3], [7, 127]], kind), np.arange(3)
    path = npz(x_train=given, y_train=labels, x_test=given, y_test=labels)
    options = flags("--data", path, "--batch_size", 0)
    for part, expected in (("train", shuffled(given, labels)), ("test", (given, labels))):
        x, found = data.load(options, part)
        assert (x.dtype, found.dtype) == (loaded, np.int64)
        np.testing.assert_array_equal(x, expected[0])
        np.testing.assert_array_equal(found, expected[1])
    (batch, _), *_ = fetch_batches(options, 1)
    assert batch.dtype == loaded
    np.testing.assert_array_equal(batch, shuffled(given)[0])
    tensor = tf.constant(x)
    assert data.scaled(tensor) is tensor


def test_bytes_of_an_npz_are_pixels(npz):
    """Scaled as those of downloaded images: Keras' mnist.npz holds such bytes."""
    x, labels = np.arange(12, dtype=np.uint8).reshape(3, 2, 2) * 23, np.arange(3)
    path = npz(x_train=x, y_train=labels, x_test=x, y_test=labels)
    options = flags("--data", path, "--batch_size", 0)
    for part, expected in (("train", shuffled(x)[0]), ("test", x)):
        found, _ = data.load(options, part)
        assert found.dtype == np.uint8
        np.testing.assert_array_equal(found, expected)
    (batch, _), *_ = fetch_batches(options, 1)
    assert batch.dtype == np.float32
    np.testing.assert_allclose(batch, shuffled(x)[0] / 255, rtol=1e-6)


IDS = np.array([[2**24 + 1], [2**24 + 3], [-(2**24) - 1]])


@pytest.mark.parametrize("worker", [0, 1])
def test_large_ids_of_an_npz_reach_a_model_of_ones_own(npz, worker):
    """float32 would round them to even numbers."""
    path = npz(x_train=IDS, y_train=np.arange(3), x_test=IDS, y_test=np.arange(3))
    options = flags("--data", path, "--batch_size", 0)
    (ids, _), *_ = fetch_batches(options, 1, worker, 2)
    np.testing.assert_array_equal(ids, shuffled(IDS)[0][worker::2])


@pytest.mark.parametrize(("x", "named"), [(IDS, "16777217"), (IDS[2:], "-16777217")])
def test_the_built_in_networks_refuse_ids_that_float32_would_change(npz, capsys, x, named):
    path = npz(x_train=x, y_train=np.arange(len(x)), x_test=x, y_test=np.arange(len(x)))
    with pytest.raises(SystemExit), tf.Graph().as_default():
        models.create(flags("--data", path))
    one_sentence(capsys.readouterr().err, "whole number", named, "float32", "16777216", "your own")


def test_the_built_in_networks_take_smaller_whole_numbers(npz):
    x = np.array([[2**24, -(2**24)], [3, 4]])
    path = npz(x_train=x, y_train=np.arange(2), x_test=x, y_test=np.arange(2))
    options = flags("--data", path, "--batch_size", 0, "--model", "linear")
    with tf.Graph().as_default(), tf.Session() as session:
        params = models.create(options)
        loss, _ = models.gradients(options, params, data.batches(options)())
        session.run(tf.global_variables_initializer())
        initialise(session)
        assert session.run(loss) == pytest.approx(np.log(2))


@pytest.mark.parametrize("kind", [np.uint8, np.uint64])
def test_labels_may_be_unsigned(npz, kind):
    """TensorFlow's losses take signed ones."""
    labels = (np.arange(12) % 3).astype(kind)
    options = flags("--data", npz(y_train=labels), "--batch_size", 0)  # y_test is signed
    prepare.check(options)
    assert datasets.describe(options) == ((5,), 3, 12)
    _, found = data.load(options, "train")
    (_, batch), *_ = fetch_batches(options, 1)
    for each in (found, batch):
        assert each.dtype == np.int64
        np.testing.assert_array_equal(each, shuffled(np.arange(12) % 3)[0])


# Bad combinations; bad_input.py has the faults of an .npz


@pytest.mark.parametrize(("name", "workers"), [("npz", 13), ("digits", 1438)])
def test_as_many_workers_as_examples_and_no_more(npz, capsys, name, workers):
    options = ("--data", npz() if name == "npz" else name, "--workers")
    prepare.check(flags(*options, workers - 1))
    with pytest.raises(SystemExit) as ended:
        prepare.check(flags(*options, workers))
    assert ended.value.code == 2
    one_sentence(capsys.readouterr().err, f"--workers {workers}", f"only {workers - 1} examples")


def command(*given, folder="HogWild", **env: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        ["bash", str(ROOT / folder / "run.sh"), *map(str, given)],
        capture_output=True,
        text=True,
        timeout=seconds(60),
        env=environment(no_proxy="127.0.0.1", **env),
    )


# Batches


def fetch_batches(options, count: int, worker: int = 0, workers: int = 1):
    """What a worker gets in `count` steps: [(x, labels), ...]."""
    with tf.Graph().as_default():
        batch = data.batches(options, worker, workers)()
        with tf.Session() as session:
            initialise(session)
            return [session.run(batch) for _ in range(count)]


def numbered(npz, *more, train: int = 12):
    """Flags for a data set in which the features of each example are its index."""
    return flags("--data", npz(base=arrays(train)), *more)


def dealt(options, count: int, **worker) -> np.ndarray:
    """[count, batch]: the indices of the delivered examples; the labels must match."""
    batches = fetch_batches(options, count, **worker)
    for x, labels in batches:
        assert (x.dtype, labels.dtype) == (np.float32, np.int64)
        np.testing.assert_array_equal(labels, x[:, 0] % 3)
    return np.stack([x[:, 0] for x, _ in batches]).astype(int)


def test_batch_size_0_is_the_whole_shard_in_order(npz):
    options, (order,) = numbered(npz, "--batch_size", 0), shuffled(np.arange(12))
    np.testing.assert_array_equal(dealt(options, 3), [order] * 3)
    for worker, numbers in ((1, [1, 6, 11]), (4, [4, 9])):
        found = dealt(options, 2, worker=worker, workers=5)
        np.testing.assert_array_equal(found, [order[numbers]] * 2)


def test_each_epoch_holds_every_example_of_the_shard_once_in_a_new_order(npz):
    options = numbered(npz, "--batch_size", 4, train=24)
    epochs = dealt(options, 15, worker=1, workers=2).reshape(5, 12)
    mine = shuffled(np.arange(24))[0][1::2]
    np.testing.assert_array_equal(np.sort(epochs), [np.sort(mine)] * 5)
    orders = {tuple(epoch) for epoch in (*epochs, mine)}
    assert len(orders) == 6  # all different, and none is the file's


def test_the_whole_shard_is_mixed(npz):
    order = dealt(numbered(npz, "--batch_size", 300, train=300), 1)[0]
    assert abs(np.corrcoef(order, np.arange(300))[0, 1]) < 0.2  # near 1 with a short shuffle buffer


@pytest.mark.parametrize("size", [5, 20])
def test_a_batch_size_that_does_not_divide_the_shard_loses_nothing(npz, size):
    dealt_out = dealt(numbered(npz, "--batch_size", size), 12)
    assert dealt_out.shape == (12, size)
    np.testing.assert_array_equal(np.bincount(dealt_out.ravel()), [size] * 12)


def test_the_order_depends_on_seed_and_worker(npz):
    def order(seed, worker):
        options = numbered(npz, "--batch_size", 12, "--seed", seed, train=24)
        place = np.argsort(shuffled(np.arange(24))[0]) // 2  # of an example in its shard
        return tuple(place[dealt(options, 2, worker=worker, workers=2)].ravel())

    assert order(0, 0) == order(0, 0)
    assert order(3, 1) == order(3, 1)
    assert len({order(0, 0), order(0, 1), order(3, 0), order(3, 1)}) == 4


def loop(options, steps: int, **how) -> np.ndarray:
    """[steps, batch]: the indices of the examples that each iteration of a loop gets."""
    with tf.Graph().as_default():
        next_batch = data.batches(options)

        def body(t, seen):
            return t + 1, seen.write(t, next_batch()[0][:, 0])

        start = [0, tf.TensorArray(tf.float32, steps)]
        seen = tf.while_loop(lambda t, _: t < steps, body, start, **how)[1].stack()
        with tf.Session() as session:
            initialise(session)
            return session.run(seen).astype(int)


def test_each_iteration_of_a_loop_gets_a_new_batch(npz):
    dealt_out = loop(numbered(npz, "--batch_size", 3), 8)
    np.testing.assert_array_equal(np.bincount(dealt_out.ravel()), [2] * 12)  # two epochs


def test_sequential_iterations_get_the_batches_in_the_order_of_the_seed(npz):
    """By default TensorFlow lets several iterations fetch at the same time, in any order."""
    options = numbered(npz, "--batch_size", 3)
    np.testing.assert_array_equal(loop(options, 20, parallel_iterations=1), dealt(options, 20))


def test_delay_applies_to_each_iteration(npz):
    begun = time.monotonic()
    loop(numbered(npz, "--batch_size", 3, "--delay", "0:0.05"), 10, parallel_iterations=1)
    assert time.monotonic() - begun >= 10 * 0.05


def test_the_examples_stay_on_this_worker_and_out_of_the_graph(npz):
    """Local variables: neither saved nor shared. The graph does not contain the data."""
    with tf.Graph().as_default() as graph, tf.device("/job:worker/task:1"):
        batch = data.batches(flags(), 1, 2)()
        assert tf.global_variables() == tf.trainable_variables() == []
        assert len(tf.local_variables()) == 2
        assert {tensor.op.device for tensor in batch} == {"/job:worker/task:1"}
        assert {v.device for v in tf.local_variables()} == {"/job:worker/task:1"}
        assert graph.as_graph_def().ByteSize() < 40_000  # the shard has 184,000 bytes


def test_delay_applies_to_every_batch_of_its_worker_only(npz):
    def took(delay):
        begun = time.monotonic()
        dealt(numbered(npz, "--delay", delay, "--batch_size", 2), 3, worker=1, workers=2)
        return time.monotonic() - begun

    assert took("1:0.15") >= 3 * 0.15
    limit = seconds(30)
    assert took(f"0:{limit}") < limit


# The reader's own pipelines


def own_pipeline(dataset, count: int, delay: str | None = None, worker: int = 0) -> list:
    """What `data.pipeline` gives in `count` steps."""
    with tf.Graph().as_default():
        more = ("--delay", delay) if delay else ()
        element = data.pipeline(dataset(), flags(*more), worker)()
        with tf.Session() as session:
            initialise(session)
            return [session.run(element) for _ in range(count)]


def test_the_readers_own_pipeline_keeps_its_structure_and_order():
    def dataset():
        numbers = tf.data.Dataset.range(6).repeat()
        return numbers.map(lambda k: {"x": (k, [2 * k, 3 * k]), "name": tf.strings.as_string(k)})

    for k, element in enumerate(own_pipeline(dataset, 14)):
        k %= 6
        assert element["x"][0] == k
        assert list(element["x"][1]) == [2 * k, 3 * k]
        assert element["name"] == str(k).encode()
        assert set(element) == {"x", "name"} and type(element["x"]) is tuple


def test_a_pipeline_of_batches_keeps_its_shapes():
    with tf.Graph().as_default():
        numbers = tf.data.Dataset.from_tensor_slices(np.zeros((12, 3), np.float32))
        batch = data.pipeline(numbers.repeat().batch(4, drop_remainder=True), flags())()
        assert (batch.dtype, batch.shape.as_list()) == (tf.float32, [4, 3])


def every_kind(k):
    """An element with a sparse and a ragged tensor, nested, and something missing."""
    sparse = tf.SparseTensor([[k % 3, 0], [2, 1]], tf.cast([k, 7], tf.float32), [3, 2])
    ragged = tf.RaggedTensor.from_row_lengths(tf.range(k, k + 3), [1, 2])
    return {"sparse": sparse, "nested": (k, (ragged, tf.as_string(k))), "none": None}


@pytest.mark.parametrize("batched", [False, True])
def test_sparse_and_ragged_elements_stay_what_they_are(batched):
    with tf.Graph().as_default():
        numbers = tf.data.Dataset.range(1, 9).map(every_kind)
        element = data.pipeline(numbers.batch(2) if batched else numbers, flags())()
        assert type(element["sparse"]) is tf.SparseTensor and element["none"] is None
        assert element["sparse"].shape.as_list() == [*[None] * batched, 3, 2]
        number, (ragged, text) = element["nested"]
        assert type(ragged) is tf.RaggedTensor and ragged.dtype == tf.int64
        assert ragged.ragged_rank == 1 + batched
        dense = tf.sparse.to_dense(tf.sparse.reorder(element["sparse"]))
        seen = dense, ragged, number, text
        if batched:  # the second one of each batch
            seen = [part[1] for part in seen]
        with tf.Session() as session:
            initialise(session)
            for k in (2, 4, 6) if batched else (1, 2, 3):
                found, rows, n, name = session.run(seen)
                expected = np.zeros((3, 2), np.float32)
                expected[k % 3, 0], expected[2, 1] = k, 7
                np.testing.assert_array_equal(found, expected)
                assert rows.to_list() == [[k], [k + 1, k + 2]]
                assert (n, name) == (k, str(k).encode())


def test_a_sparse_element_in_a_loop_and_in_a_sum():
    """Each iteration gets its own."""
    with tf.Graph().as_default():
        next_element = data.pipeline(tf.data.Dataset.range(9).map(every_kind), flags())

        def body(t, total):
            return t + 1, total + tf.reduce_sum(next_element()["sparse"].values)

        _, total = tf.while_loop(lambda t, _: t < 5, body, [0, 0.0], parallel_iterations=1)
        with tf.Session() as session:
            initialise(session)
            assert session.run(total) == sum(range(5)) + 5 * 7


@pytest.mark.parametrize("files", [4, 1])
def test_the_recipe_for_tfrecord_files(tmp_path, files):
    """As docs/QUESTIONS.md says: each worker gets its own records, all of them in each epoch."""
    page = (ROOT / "docs/QUESTIONS.md").read_text()
    (recipe,) = re.findall(r"```python\n(files = .*?)```", page, re.S)
    recipe = recipe.replace("/data/", f"{tmp_path}/")
    if files == 1:  # fewer than workers
        first, then = ".shard(flags.workers, task.index)", ".interleave(tf.data.TFRecordDataset)"
        assert first + then in recipe
        recipe = recipe.replace(first + then, then + first)
    for k in range(files):
        with tf.io.TFRecordWriter(str(tmp_path / f"train-{k}.tfrecord")) as file:
            for number in range(k, 24, files):
                file.write(str(number).encode())

    def parse(record):
        return tf.strings.to_number(record, tf.int64)

    seen = []
    for worker in (0, 1):
        options = flags("--batch_size", 3)
        names = {"tf": tf, "data": data, "flags": options, "parse": parse,
                 "task": argparse.Namespace(index=worker)}  # fmt: skip
        with tf.Graph().as_default(), tf.Session() as session:
            exec(recipe, names)
            batch = names["next_batch"]()
            initialise(session)
            seen.append([int(n) for _ in range(8) for n in session.run(batch)])
    assert [sorted(mine) for mine in seen] == [sorted([*set(mine)] * 2) for mine in seen]
    assert sorted({*seen[0], *seen[1]}) == list(range(24)) and len(seen[0]) == 24


def test_the_end_of_a_pipeline_is_not_the_end_of_the_run():
    """Both raise TensorFlow's OutOfRangeError in the step."""
    with tf.Graph().as_default():
        element = data.pipeline(tf.data.Dataset.range(3), flags())()
        finished = tf.Variable(7).count_up_to(7)
        with tf.Session() as session:
            initialise(session)
            session.run(tf.global_variables_initializer())
            assert [session.run(element) for _ in range(3)] == [0, 1, 2]
            for _ in range(2):
                with pytest.raises(tf.errors.OutOfRangeError, match="next_element") as ended:
                    session.run(element)
                assert data.is_end(ended.value)
            with pytest.raises(tf.errors.OutOfRangeError) as ended:
                session.run(finished)
            assert not data.is_end(ended.value)


def test_a_cancelled_call_ends_a_pipeline_which_then_starts_again():
    """TensorFlow cancels a call that it aborts. In the middle of an element that ends the iterator
    for good. Here a call waits for an element until its time is up."""
    with tf.Graph().as_default(), tf.Session() as session:
        queue = tf.FIFOQueue(-1, tf.float32, [[]])
        fill, fill_more = queue.enqueue(0.5), queue.enqueue_many([[0.5] * 99])
        close = queue.close()
        dataset = tf.data.Dataset.range(9).map(lambda _: queue.dequeue()).repeat()
        element = data.pipeline(dataset, flags())()
        session.run(fill)
        initialise(session)
        assert session.run(element) == 0.5
        with pytest.raises(tf.errors.DeadlineExceededError):
            session.run(element, options=tf.RunOptions(timeout_in_ms=int(1000 * seconds(1))))
        session.run(fill_more)
        assert data.is_cut(session)
        assert data.start_again(session)
        assert not data.is_cut(session)
        assert session.run(element) == 0.5
        session.run(close)  # or TensorFlow crashes if a thread waits for the queue when it goes


def test_no_data_is_not_cut():
    """As in a script whose data is not a `pipeline`."""
    with tf.Graph().as_default(), tf.Session() as session:
        tf.constant(0)
        assert not data.is_cut(session)


def test_an_empty_pipeline_cannot_be_initialised():
    with tf.Graph().as_default():
        data.pipeline(tf.data.Dataset.range(0), flags())()
        with tf.Session() as session, pytest.raises(tf.errors.OutOfRangeError) as ended:
            initialise(session)
        assert data.is_end(ended.value)


def test_the_initialisation_waits_for_the_first_element_and_keeps_it():
    """Or the first update would be very stale: the pull of a step does not wait for its batch."""
    pause = 1.0

    def slow(k):
        time.sleep(pause if k == 0 else 0)
        return k

    with tf.Graph().as_default():
        numbers = tf.data.Dataset.range(20)
        element = data.pipeline(numbers.map(lambda k: tf.numpy_function(slow, [k], tf.int64)),
                                flags())()  # fmt: skip
        with tf.Session() as session:
            for _ in range(2):  # a recovery initialises again
                begun = time.monotonic()
                initialise(session)
                assert time.monotonic() - begun >= pause
                begun = time.monotonic()
                assert [session.run(element) for _ in range(12)] == list(range(12))
                assert time.monotonic() - begun < pause


def test_an_error_of_the_first_element_is_raised_by_the_initialisation():
    with tf.Graph().as_default():
        lines = tf.data.TextLineDataset("/no/such/file").repeat()
        data.pipeline(lines, flags())()
        with tf.Session() as session, pytest.raises(tf.errors.NotFoundError, match="no/such/file"):
            initialise(session)


def test_an_error_of_a_later_element_is_raised_by_its_step():
    with tf.Graph().as_default():
        numbers = tf.data.Dataset.range(9).map(lambda k: tf.debugging.check_numerics(
            1 / (2 - tf.cast(k, tf.float32)), "element 2"))  # fmt: skip
        element = data.pipeline(numbers, flags())()
        with tf.Session() as session:
            initialise(session)
            assert [session.run(element) for _ in range(2)] == [0.5, 1.0]
            with pytest.raises(tf.errors.InvalidArgumentError, match="element 2"):
                session.run(element)


def test_the_readers_own_pipeline_keeps_the_delay_of_its_worker():
    def seconds(worker):
        begun = time.monotonic()
        own_pipeline(lambda: tf.data.Dataset.range(9).repeat(), 5, "1:0.1", worker)
        return time.monotonic() - begun

    assert seconds(1) >= 5 * 0.1 > seconds(0)


# Downloads: a local server with tiny files in the publishers' formats


def idx(content: np.ndarray) -> bytes:
    sizes = b"".join(size.to_bytes(4, "big") for size in content.shape)
    return gzip.compress(bytes([0, 0, 8, content.ndim]) + sizes + content.tobytes())


def tar(contents: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


RNG = np.random.default_rng(0)
MNIST = {
    "train": (RNG.integers(0, 256, (30, 28, 28), np.uint8), (np.arange(30) % 10).astype(np.uint8)),
    "test": (RNG.integers(0, 256, (10, 28, 28), np.uint8), (np.arange(10) % 10).astype(np.uint8)),
}
CIFAR = {
    "train": (RNG.integers(0, 256, (20, 32, 32, 3), np.uint8), np.arange(20) % 10),
    "test": (RNG.integers(0, 256, (4, 32, 32, 3), np.uint8), np.arange(4)),
}


def cifar_batch(x: np.ndarray, labels: np.ndarray) -> bytes:
    """As published: a record is the label, then 1,024 red, 1,024 green and 1,024 blue bytes."""
    planes = [b"".join(image[..., c].tobytes() for c in range(3)) for image in x]
    return b"".join(bytes([label]) + plane for label, plane in zip(labels, planes))


IDX_FILES = {
    f"{name}-{kind}.gz": idx(MNIST[part][i])
    for part, name in (("train", "train"), ("test", "t10k"))
    for i, kind in enumerate(("images-idx3-ubyte", "labels-idx1-ubyte"))
}
CIFAR_FILES = {
    f"data_batch_{i + 1}.bin": cifar_batch(*(a[4 * i : 4 * i + 4] for a in CIFAR["train"]))
    for i in range(5)
} | {"test_batch.bin": cifar_batch(*CIFAR["test"])}
IN_TAR = {f"cifar-10-batches-bin/{name}": content for name, content in CIFAR_FILES.items()}
IN_TAR["cifar-10-batches-bin/batches.meta.txt"] = b"airplane\n"
TAR_FILES = {"cifar-10-binary.tar.gz": tar(IN_TAR)}
FILES = {"mnist": IDX_FILES, "fashion_mnist": IDX_FILES, "cifar10": TAR_FILES}
EXTRACTED = {"cifar10": {f"cifar-10-batches-bin/{n}": body for n, body in CIFAR_FILES.items()}}
TRUTH = {"mnist": MNIST, "fashion_mnist": MNIST, "cifar10": CIFAR}


class Server:
    """A web server on this machine.

    Attributes:
        bodies: path -> content.
        lengths: path -> a false Content-Length.
        asked: the paths of all requests.
        continues: whether it can send the rest of a body (206), or only the whole (200).
        sent: how many bytes of bodies it sent.
        halfway: called when half of a body is sent.
    """

    def __init__(self):
        self.bodies: dict[str, bytes] = {}
        self.lengths: dict[str, int] = {}
        self.asked: list[str] = []
        self.continues, self.sent = True, 0
        self.halfway = lambda: None
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                outer.asked.append(self.path)
                body = outer.bodies.get(self.path)
                if body is None:
                    self.send_error(404)
                    return
                asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
                length = outer.lengths.get(self.path, len(body))
                if asked and outer.continues:
                    first = int(asked[1])
                    if first >= length:
                        self.send_error(416)
                        return
                    self.send_response(206)
                    self.send_header("Content-Range", f"bytes {first}-{length - 1}/{length}")
                    body, length = body[first:], length - first
                else:
                    self.send_response(200)
                outer.sent += len(body)
                self.send_header("Content-Length", length)
                self.end_headers()
                self.wfile.write(body[: len(body) // 2])
                self.wfile.flush()
                outer.halfway()
                with contextlib.suppress(ConnectionError):  # the client may have read enough
                    self.wfile.write(body[len(body) // 2 :])

            def log_message(self, *_):
                pass

        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()

    def close(self):
        self._http.shutdown()
        self._http.server_close()


def facts(content: bytes) -> tuple[str, int]:
    """What `download.SOURCES` says about a file: its MD5 and its size."""
    return hashlib.md5(content).hexdigest(), len(content)


@pytest.fixture
def server(monkeypatch, tmp_path):
    """Replaces the publishers' servers, with tiny files and their checksums."""
    monkeypatch.setenv("DATA_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with contextlib.closing(Server()) as made:
        for name, files in FILES.items():
            made.bodies |= {f"/{name}/{file}": content for file, content in files.items()}
            sums = {file: facts(content) for file, content in files.items()}
            monkeypatch.setitem(download.SOURCES, name, (f"{made.url}/{name}", sums))
        yield made


def cached(tmp_path) -> dict[str, bytes]:
    """Every file in the cache, including hidden ones."""
    root = tmp_path / "cache"
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def expected_cache(name: str) -> dict[str, bytes]:
    files = FILES[name] | EXTRACTED.get(name, {})
    return {f"{name}/{file}": body for file, body in files.items()}


@pytest.mark.parametrize("name", FILES)
def test_a_download_gives_the_publishers_arrays_and_happens_once(server, tmp_path, capsys, name):
    options = flags("--data", name)
    prepare.fetch(options)
    assert cached(tmp_path) == expected_cache(name)
    assert sorted(server.asked) == sorted(f"/{name}/{file}" for file in FILES[name])
    assert capsys.readouterr().out.count("downloading") == len(FILES[name])

    for part, (x, labels) in TRUTH[name].items():
        measured, measured_labels = data.load(options, part)
        with tf.Session() as session:
            scaled = session.run(data.scaled(tf.constant(measured)))
        np.testing.assert_allclose(scaled, x.astype(np.float32) / 255, rtol=1e-6)
        np.testing.assert_array_equal(measured_labels, labels)
    (batch, labels), *_ = fetch_batches(options_with(options, batch_size=0), 1)
    assert batch.dtype == np.float32
    np.testing.assert_allclose(batch, TRUTH[name]["train"][0] / 255, rtol=1e-6)
    np.testing.assert_array_equal(labels, TRUTH[name]["train"][1])

    prepare.fetch(options)
    assert len(server.asked) == len(FILES[name])  # no request after the first time
    assert capsys.readouterr().out == ""


def options_with(options, **changed):
    for name, value in changed.items():
        setattr(options, name, value)
    return options


@pytest.mark.parametrize(
    ("name", "size"), [("mnist", 60_000), ("fashion_mnist", 60_000), ("cifar10", 50_000)]
)
def test_the_description_of_a_download_is_known_before_it(server, name, size):
    options = flags("--data", name)
    example, classes, count = datasets.describe(options)
    assert server.asked == []
    x, labels = data.load(options, "train")
    assert (example, classes) == (x.shape[1:], labels.max() + 1)
    assert count == size  # as published; this server's file is tiny


def test_data_url_overrides_the_publisher(server):
    server.bodies = {f"/mirror/{file}": body for file, body in IDX_FILES.items()}
    prepare.fetch(flags("--data", "mnist", "--data_url", f"{server.url}/mirror/"))
    assert sorted(server.asked) == sorted(server.bodies)


def test_a_task_started_by_hand_fetches_the_data_itself(server):
    options = flags("--data", "mnist", "--data_url", f"{server.url}/mnist")
    x, _ = data.load(options, "train")
    np.testing.assert_array_equal(x, MNIST["train"][0])


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("other content", ("is not the expected file", "MD5", "--data_url")),
        ("too long", ("is not the expected file", "larger than", "bytes", "--data_url")),
        ("empty", ("is not the expected file", "--data_url")),
        ("cut off", ("stopped after 20 of 1,000 bytes", "run again")),
        ("404", ("cannot download", "Not Found", "--data_url", "--data digits")),
    ],
)
@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_a_bad_download_gives_a_one_line_error_and_no_file_of_that_name(
    server, tmp_path, capsys, name, fault, words
):
    last = list(FILES[name])[-1]
    path = f"/{name}/{last}"
    good = server.bodies.pop(path)
    if fault != "404":
        bodies = {
            "other content": b"!" + good[1:],
            "too long": good + b"!",
            "empty": b"",
            "cut off": good[:20],
        }
        server.bodies[path] = bodies[fault]
    if fault == "cut off":
        server.lengths[path] = 1000
    with pytest.raises(SystemExit) as ended:
        prepare.fetch(flags("--data", name))
    assert ended.value.code == 2
    one_sentence(capsys.readouterr().err, f"{server.url}{path}", *words)
    before = {file: content for file, content in FILES[name].items() if file != last}
    if fault == "cut off":  # the part that arrived stays
        before[f"{last}.part"] = good[:20]
    assert cached(tmp_path) == {f"{name}/{file}": content for file, content in before.items()}

    server.bodies[path] = good  # now only the missing file is fetched
    server.lengths.clear()
    server.asked.clear()
    prepare.fetch(flags("--data", name))
    assert server.asked == [path]
    assert cached(tmp_path) == expected_cache(name)


@pytest.mark.parametrize("continues", [True, False])
def test_a_download_resumes_where_it_broke_off(server, tmp_path, capsys, continues):
    """A server that can send the rest sends only that; others send everything again."""
    path, good = "/cifar10/cifar-10-binary.tar.gz", TAR_FILES["cifar-10-binary.tar.gz"]
    server.bodies[path], server.lengths[path] = good[:7000], len(good)
    with pytest.raises(SystemExit):
        prepare.fetch(flags("--data", "cifar10"))
    one_sentence(
        capsys.readouterr().err, f"stopped after 7,000 of {len(good):,} bytes", "to resume"
    )
    server.bodies[path], server.continues, server.sent = good, continues, 0
    prepare.fetch(flags("--data", "cifar10"))
    assert server.sent == len(good) - (7000 if continues else 0)
    assert ("resuming after 7,000 bytes" in capsys.readouterr().out) == continues
    assert cached(tmp_path) == expected_cache("cifar10")


@pytest.mark.parametrize("left", ["other bytes", "too many bytes"])
def test_a_leftover_part_of_another_file(server, tmp_path, capsys, left):
    """Never gives a wrong file: either the checksum fails, or there is no rest to send."""
    good = TAR_FILES["cifar-10-binary.tar.gz"]
    part = tmp_path / "cache" / "cifar10" / "cifar-10-binary.tar.gz.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"?" * (7000 if left == "other bytes" else len(good)))
    if left == "other bytes":
        with pytest.raises(SystemExit):
            prepare.fetch(flags("--data", "cifar10"))
        one_sentence(capsys.readouterr().err, "is not the expected file", "MD5")
        assert cached(tmp_path) == {}
    prepare.fetch(flags("--data", "cifar10"))
    assert cached(tmp_path) == expected_cache("cifar10")


def test_two_processes_download_once(server, tmp_path):
    half, go_on = threading.Event(), threading.Event()

    def halfway():
        half.set()
        assert go_on.wait(seconds(20))

    server.halfway = halfway
    options = flags("--data", "cifar10")
    both = [threading.Thread(target=prepare.fetch, args=(options,)) for _ in range(2)]
    both[0].start()
    assert half.wait(seconds(10))
    both[1].start()
    go_on.set()
    for one in both:
        one.join(seconds(20))
    assert len(server.asked) == 1
    assert cached(tmp_path) == expected_cache("cifar10")


def test_the_second_of_two_processes_downloads_if_the_first_fails(server, tmp_path, monkeypatch):
    """The first removes the empty folder while the second waits for its lock there."""
    name, good = "cifar-10-binary.tar.gz", TAR_FILES["cifar-10-binary.tar.gz"]
    lock, half, both_wait, calls = download.fcntl.flock, threading.Event(), threading.Event(), []

    def flock(file, how):
        calls.append(file)
        if len(calls) == 2:  # the second process has opened the folder
            both_wait.set()
        lock(file, how)

    def halfway():
        half.set()
        assert both_wait.wait(seconds(20))
        server.bodies[f"/cifar10/{name}"] = good

    def fetch():
        with contextlib.suppress(SystemExit):  # of the first
            prepare.fetch(flags("--data", "cifar10"))

    monkeypatch.setattr(download.fcntl, "flock", flock)
    server.bodies[f"/cifar10/{name}"] = b"!" + good[1:]
    server.halfway = halfway
    both = [threading.Thread(target=fetch) for _ in range(2)]
    both[0].start()
    assert half.wait(seconds(10))
    both[1].start()
    for one in both:
        one.join(seconds(20))
    assert len(server.asked) == 2
    assert cached(tmp_path) == expected_cache("cifar10")


def test_a_terminal_shows_a_progress_bar(server, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    prepare.fetch(flags("--data", "cifar10"))
    size = len(TAR_FILES["cifar-10-binary.tar.gz"]) / 1000
    assert f"{size:.1f}/{size:.1f} kB" in capsys.readouterr().out
    assert cached(tmp_path) == expected_cache("cifar10")


def test_elsewhere_a_line_every_ten_seconds_shows_progress(monkeypatch):
    clock, said = iter([0, 6, 12, 18, 24]), []
    monkeypatch.setattr(download.time, "monotonic", lambda: next(clock))
    with download._progress(20_000_000, 100_000_000, said.append) as advance:
        for _ in range(3):
            advance(10_000_000)
    assert said == ["40 MB of 100 MB"]


# What CIFAR-10's archive may contain: each case is an archive with the right checksum

BAD_ARCHIVES = {
    "leaves its folder": (IN_TAR | {"cifar-10-batches-bin/../../evil": b"!"}, "is outside"),
    "absolute": (IN_TAR | {"/tmp/evil": b"!"}, "is outside"),
    "no test batch": (
        {n: b for n, b in IN_TAR.items() if "test" not in n},
        "lacks cifar-10-batches-bin/test",
    ),
    "half a record": (IN_TAR | {"cifar-10-batches-bin/test_batch.bin": b"12"}, "3073 bytes"),
    "empty file": (IN_TAR | {"cifar-10-batches-bin/data_batch_2.bin": b""}, "3073 bytes"),
    "truncated": (tar(IN_TAR)[:-200], "cannot be extracted"),
    "no archive": (b"<html>moved</html>", "cannot be extracted"),
    "a link": ("cifar-10-batches-bin/test_batch.bin", "is not a file"),
}


def linked(name: str) -> bytes:
    """The archive with a symbolic link to /etc/passwd instead of one file."""
    out = io.BytesIO(tar({n: content for n, content in IN_TAR.items() if n != name}))
    with tarfile.open(fileobj=out) as old:
        contents = {m.name: old.extractfile(m).read() for m in old}
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for member_name, content in contents.items():
            member = tarfile.TarInfo(member_name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        link = tarfile.TarInfo(name)
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    return made.getvalue()


@pytest.mark.parametrize("case", BAD_ARCHIVES)
def test_a_bad_archive_is_refused_and_nothing_is_extracted(
    server, tmp_path, monkeypatch, capsys, case
):
    content, words = BAD_ARCHIVES[case]
    if isinstance(content, dict):
        content = tar(content)
    elif isinstance(content, str):
        content = linked(content)
    name = "cifar-10-binary.tar.gz"
    server.bodies[f"/cifar10/{name}"] = content
    sums = {name: facts(content)}
    monkeypatch.setitem(download.SOURCES, "cifar10", (f"{server.url}/cifar10", sums))
    with pytest.raises(SystemExit) as ended:
        prepare.fetch(flags("--data", "cifar10"))
    assert ended.value.code == 2
    one_sentence(capsys.readouterr().err, str(tmp_path / "cache" / "cifar10" / name), words)
    assert cached(tmp_path) == {f"cifar10/{name}": content}
    assert not list(tmp_path.rglob("*evil*"))


@pytest.mark.parametrize("damage", ["half a record", "a label of 10", "missing"])
def test_a_damaged_extracted_file_is_named(server, tmp_path, capsys, damage):
    options = flags("--data", "cifar10")
    prepare.fetch(options)
    path = tmp_path / "cache" / "cifar10" / "cifar-10-batches-bin" / "data_batch_3.bin"
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(content[:-5] if damage == "half a record" else b"\x0a" + content[1:])
    with pytest.raises(SystemExit) as ended:
        data.load(options, "train")
    assert ended.value.code == 2
    one_sentence(capsys.readouterr().err, str(path), "is damaged: delete")


def test_a_server_that_does_not_answer(server, tmp_path, capsys):
    url = server.url
    server.close()
    with pytest.raises(SystemExit) as ended:
        prepare.fetch(flags("--data", "mnist", "--data_url", url))
    assert ended.value.code == 2
    one_sentence(capsys.readouterr().err, f"cannot download {url}", "refused", "--data_url")
    assert not (tmp_path / "cache").exists()


def test_a_damaged_file_is_fetched_again(server, tmp_path, capsys):
    options = flags("--data", "mnist")
    prepare.fetch(options)
    file = tmp_path / "cache" / "mnist" / "t10k-labels-idx1-ubyte.gz"
    file.write_bytes(file.read_bytes()[:-1])
    server.asked.clear()
    capsys.readouterr()
    prepare.fetch(options)
    assert server.asked == ["/mnist/t10k-labels-idx1-ubyte.gz"]
    assert f"{file} is damaged" in capsys.readouterr().out
    assert cached(tmp_path) == {f"mnist/{file}": body for file, body in IDX_FILES.items()}


def test_a_cache_that_cannot_be_written(server, tmp_path, monkeypatch, capsys):
    in_the_way = tmp_path / "file"
    in_the_way.write_text("precious")
    monkeypatch.setenv("DATA_DIR", str(in_the_way))
    with pytest.raises(SystemExit) as ended:
        prepare.fetch(flags("--data", "mnist"))
    assert ended.value.code == 2
    one_sentence(capsys.readouterr().err, "cannot download", str(in_the_way))
    assert in_the_way.read_text() == "precious"


def test_a_file_appears_whole_or_not_at_all(server, tmp_path):
    """During a download, however slow, the name that readers open does not exist."""
    half, go_on = threading.Event(), threading.Event()

    def halfway():
        half.set()
        assert go_on.wait(seconds(10))

    server.halfway = halfway
    fetching = threading.Thread(target=prepare.fetch, args=(flags("--data", "cifar10"),))
    fetching.start()
    assert half.wait(seconds(10))
    present = cached(tmp_path)
    go_on.set()
    fetching.join(seconds(10))
    assert not {"cifar10/cifar-10-binary.tar.gz"} & present.keys()
    assert cached(tmp_path) == expected_cache("cifar10")


def test_a_corrupt_download_on_the_command_line(server, tmp_path):
    """The tiny files do not match the publisher's checksum."""
    finished = command(
        "--data", "mnist", "--data_url", f"{server.url}/mnist", "--results", tmp_path / "results",
        DATA_DIR=str(tmp_path / "cache"),
    )  # fmt: skip
    assert finished.returncode == 2
    one_sentence(finished.stderr, f"{server.url}/mnist/train-images", "MD5", "--data_url")
    assert server.asked == ["/mnist/train-images-idx3-ubyte.gz"]
    assert not (tmp_path / "cache").exists()
    assert not list(tmp_path.glob("results/*.json"))
