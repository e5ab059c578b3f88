"""Damaged checkpoints, and folders whose names TensorFlow treats as patterns."""

import os
import re
import shutil

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from common.training import checkpoints, chief

tf.disable_eager_execution()

DAMAGE = {
    "no end of the index": lambda index, data: os.truncate(index, 20),
    "an empty index": lambda index, data: os.truncate(index, 0),
    "an index of other bytes": lambda index, data: index.write_bytes(b"\xff\x00no index" * 30),
    "no end of the data": lambda index, data: os.truncate(data, data.stat().st_size // 2),
    "no data": lambda index, data: data.unlink(),
    "another byte in the data": lambda index, data: data.write_bytes(b"?" + data.read_bytes()[1:]),
}
STATES = {
    "cut off": lambda text: text[:20],
    "empty": lambda text: b"",
    "other bytes": lambda text: b"\xff\x00no state",
    "of a folder that was moved": lambda text: text.replace(b"model.ckpt", b"/moved/model.ckpt"),
}


def files(folder, step: int) -> tuple:
    """The index file and the data file of a checkpoint."""
    name = f"model.ckpt-{step}"
    return folder / f"{name}.index", folder / f"{name}.data-00000-of-00001"


@pytest.fixture(params=["plain", "a[1]", "b*", "c?", "d\\e"])
def saved(request, tmp_path):
    """A folder with checkpoints 100 and 120 of a variable that was 100, then 120."""
    folder = tmp_path / request.param
    folder.mkdir()
    with tf.Graph().as_default(), tf.Session() as session:
        value = tf.Variable(0.0, name="value")
        saver = checkpoints.Saver()
        for step in (5, 90, 100, 120):
            value.load(float(step), session)
            saver.save(session, f"{folder}/model.ckpt", step, write_meta_graph=False)
    return folder


def restored(folder) -> float | None:
    """The variable's value in the checkpoint from which a run would continue."""
    newest = checkpoints.newest(str(folder))
    if newest is None:
        return None
    with tf.Graph().as_default(), tf.Session() as session:
        value = tf.Variable(0.0, name="value")
        checkpoints.Saver().restore(session, newest)
        return session.run(value)


def test_the_two_newest_are_kept(saved):
    names = {path.name for path in saved.iterdir()}
    assert names == {"checkpoint", *(path.name for k in (100, 120) for path in files(saved, k))}


def test_the_newest_is_restored(saved, capsys):
    assert restored(saved) == 120
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_one_is_named_once_and_the_one_before_is_restored(saved, capsys, damage):
    DAMAGE[damage](*files(saved, 120))
    assert restored(saved) == 100
    said = capsys.readouterr().out
    assert (
        said == f"> damaged checkpoint in {saved}: model.ckpt-120; continuing from model.ckpt-100\n"
    )
    assert restored(saved) == 100  # as after a lost ps
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("damage", DAMAGE)
def test_no_checkpoint_is_intact(saved, capsys, damage):
    for step in (100, 120):
        DAMAGE[damage](*files(saved, step))
    before = sorted(saved.iterdir())
    with pytest.raises(SystemExit) as ended:
        checkpoints.newest(str(saved))
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(
        f"error: every checkpoint in {saved} is damaged (model.ckpt-120, model.ckpt-100): "
    )
    assert said.count("\n") == 1 and "--checkpoint_dir" in said
    assert sorted(saved.iterdir()) == before


@pytest.mark.parametrize("state", STATES)
def test_the_file_that_names_the_newest_is_not_needed(saved, state):
    path = saved / "checkpoint"
    path.write_bytes(STATES[state](path.read_bytes()))
    assert restored(saved) == 120
    path.unlink()
    assert restored(saved) == 120
    with tf.Graph().as_default():
        tf.Variable(0.0, name="value")
        checkpoints.saver(str(saved))
    found = tf.train.get_checkpoint_state(str(saved))  # now correct for TensorFlow's own calls
    assert found.model_checkpoint_path == str(saved / "model.ckpt-120")


def test_a_damaged_one_does_not_count_as_one_of_the_two(saved):
    """Otherwise the only intact one would be removed in its favour."""
    files(saved, 120)[1].unlink()
    with tf.Graph().as_default(), tf.Session() as session:
        value = tf.Variable(0.0, name="value")
        saver = checkpoints.Saver()
        saver.restore(session, checkpoints.newest(str(saved)))
        for step in (110, 130):
            value.load(float(step), session)
            saver.save(session, f"{saved}/model.ckpt", step, write_meta_graph=False)
            assert files(saved, 100)[1].exists() == (step == 110)
    assert files(saved, 110)[1].exists()
    assert restored(saved) == 130


def test_a_folder_without_checkpoints(tmp_path):
    assert restored(tmp_path) is None


def resume(run, folder, checkpoint_dir, *flags):
    return run(folder, "--checkpoint_dir", checkpoint_dir, *flags, ok=False)


def numbers(finished) -> list[int]:
    """The numbers of the updates of the only worker, in order."""
    return [event["global_step"] for event in finished.events()]


@pytest.mark.slow("three runs")
def test_a_run_continues_from_the_newest_intact_one(run, default_run, tmp_path):
    """Another run's checkpoints, in a folder with brackets; also in another example."""
    folder, alone = tmp_path / "a[1]", "Non-Distributed-Setup"
    shutil.copytree(default_run("HogWild").results / "checkpoints", folder)
    second = resume(run, "HogWild", folder, "--steps", 2050, "--workers", 1)
    assert second.code == 0, second.output
    assert second.summary["global_step"] == 2050
    assert numbers(second) == list(range(2001, 2051))
    os.truncate(files(folder, 2050)[0], 20)
    third = resume(run, alone, folder, "--steps", 2070)
    assert third.code == 0, third.output
    (before,) = re.findall(rf"^damaged checkpoint in {re.escape(str(folder))}: model.ckpt-2050; "
                           r"continuing from model.ckpt-(\d+)$", third.output, re.M)  # fmt: skip
    assert 2000 <= int(before) < 2050  # the second run saved at its beginning, and once a second
    assert numbers(third) == list(range(int(before) + 1, 2071))
    for index in folder.glob("model.ckpt-*.index"):
        os.truncate(index, 20)
    fourth = resume(run, alone, folder, "--steps", 2100)
    assert fourth.code == 2
    errors = [line for line in fourth.output.splitlines() if line.startswith("error:")]
    assert len(errors) == 1 and str(folder) in errors[0]
    assert "Traceback" not in fourth.output


@pytest.mark.slow("a run")
def test_an_actor_and_a_learner_continue_in_such_a_folder(run, default_run, tmp_path):
    """From the end of a run that reached its target; here the target is out of reach."""
    first, folder = default_run("Actor-Learner"), tmp_path / "a[1]"
    shutil.copytree(first.results / "checkpoints", folder)
    done = first.summary["global_step"]
    flags = ["--steps", done + 10, "--target_return", 501, "--workers", 1]
    second = resume(run, "Actor-Learner", folder, *flags)
    assert second.code == 0, second.output
    numbers = [event["global_step"] for event in second.events()]
    assert numbers == list(range(done + 1, done + 11))
    assert files(folder, done + 10)[0].exists()


def table(blocks: int | None, rows: int = 10) -> list[tf.Variable]:
    """A variable [rows, 2] in this many blocks of rows; None: not cut."""
    how = {} if blocks is None else {"partitioner": tf.fixed_size_partitioner(blocks)}
    found = tf.get_variable("table", [rows, 2], initializer=tf.zeros_initializer(), **how)
    return [found] if blocks is None else list(found)


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, None), (None, 4), (4, 2)])
def test_a_run_resumes_with_another_number_of_blocks(tmp_path, before, after):
    wanted = np.arange(20, dtype="f").reshape(10, 2)
    with tf.Graph().as_default(), tf.Session() as session:
        first = 0
        for block in table(before):
            rows = block.shape[0]
            block.load(wanted[first : first + rows], session)
            first += rows
        saver = checkpoints.saver(str(tmp_path))
        saver.save(session, f"{tmp_path}/model.ckpt", 7, write_meta_graph=False)
    with tf.Graph().as_default(), tf.Session() as session:
        blocks = table(after)
        checkpoints.saver(str(tmp_path)).restore(session, checkpoints.newest(str(tmp_path)))
        whole = chief._whole(blocks[::-1], session.run(blocks[::-1]))  # in any order
    assert whole.keys() == {"table"}
    np.testing.assert_array_equal(whole["table"], wanted)


def test_another_size_is_refused(tmp_path, capsys):
    with tf.Graph().as_default(), tf.Session() as session:
        session.run([block.initializer for block in table(2)])
        checkpoints.saver(str(tmp_path)).save(session, f"{tmp_path}/model.ckpt", 7)
    with tf.Graph().as_default(), pytest.raises(SystemExit):
        table(2, rows=12)
        checkpoints.saver(str(tmp_path))
    assert "(table is [10, 2] there, [12, 2] here)" in capsys.readouterr().err
