"""Checkpoints: saves them, keeps the newest, and finds the newest one that is intact.

TensorFlow trusts the file that names the newest checkpoint, and tries no other if that one is
damaged. It also treats a path as a pattern: in a folder such as `a[1]` it finds nothing.
"""

import contextlib
import os
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf

from common import fail
from common.record import results

SAVING = "saving"  # the name of an incomplete checkpoint
_damaged: set[Path] = set()  # those that this process has found


class Saver(tf.train.Saver):
    """TensorFlow's saver, for all global variables or some; keeps the newest checkpoints."""

    def __init__(self, variables: list | None = None, keep: int = 2):
        super().__init__(variables or tf.global_variables(), max_to_keep=0)  # 0: it removes none
        self.keep = keep

    def save(self, *args, **more):
        path = Path(super().save(*args, **more))
        _keep_newest(path, self.keep)
        return str(path)

    def restore(self, sess, save_path):
        with no_pattern(save_path) as path:
            super().restore(sess, path)


class Checkpoints(tf.train.SessionRunHook):
    """Saves when a session begins, once a second, and at the end. If saving would take more than a
    twentieth of the time, as over a slow link, it saves less often. Or `every` so many updates.

    A checkpoint's name is the number of updates that it contains. TensorFlow's own hook reads the
    count first; by the time it reads the parameters, workers may have made more updates.
    """

    def __init__(
        self,
        directory: str,
        saver: Saver,
        every: int | None = None,
        count: tf.Tensor | None = None,
    ):
        """`count`: the number of updates so far, which `every` needs."""
        self._directory, self._saver = directory, saver
        self._every, self._count = every, count

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(self._count) if self._every else None

    def after_create_session(self, session, coord):
        self.save(session)

    def after_run(self, run_context, run_values):
        now = run_values.results if self._every else time.monotonic()
        if now >= self._due:
            self.save(run_context.session)

    def end(self, session):
        self.save(session)

    def save(self, session: tf.Session) -> None:
        began = time.monotonic()
        saved = self._saver.save(session, f"{self._directory}/{SAVING}", write_meta_graph=False,
                                 write_state=False)  # fmt: skip
        number = complete(saved, keep=self._saver.keep)
        self._due = time.monotonic() + max(1.0, 40 * (time.monotonic() - began))
        if self._every:
            self._due = (number // self._every + 1) * self._every


def complete(saved: str, count: str = "global_step", keep: int = 2) -> int:
    """Names a checkpoint saved as `SAVING` after the `count` that it contains, keeps the newest in
    its folder, and tells TensorFlow. Returns the count."""
    with no_pattern(saved) as plain:
        number = int(tf.train.load_variable(plain, count))
    path = Path(saved).with_name(f"model.ckpt-{number}")
    for file in sorted(path.parent.glob(f"{SAVING}.*")):  # the data, then the index
        file.replace(path.with_name(path.name + file.suffix))
    _keep_newest(path, keep)
    tf.train.update_checkpoint_state(str(path.parent), str(path))
    return number


def resumed(task, count: int) -> None:
    """Tells the screen where a run continues, after `count` updates, if there were any."""
    if not count:
        return
    steps = task.flags.steps
    what = f"continues at update {count} of {steps}"
    if count >= steps:
        what = f"all {count} updates are already done: raise --steps {steps} to continue"
    print(f"> [{task.name}] {what}", flush=True)


def newest(directory: str) -> str | None:
    """The newest intact checkpoint in a folder; None if the folder holds none at all.

    Prints which ones are damaged. If all are, exits with a one-line error.
    """
    damaged, news = [], False
    for path in reversed(_all(Path(directory))):
        try:
            values(str(path))
        except Exception:  # TensorFlow raises many kinds
            damaged.append(path.name)
            news |= path not in _damaged
            _damaged.add(path)
            continue
        if news:
            print(f"> damaged checkpoint in {directory}: {', '.join(damaged)}; continuing from "
                  f"{path.name}", flush=True)  # fmt: skip
        return str(path)
    if damaged:
        fail(f"every checkpoint in {directory} is damaged ({', '.join(damaged)}): use another "
             "--checkpoint_dir, or delete them to start over")  # fmt: skip
    return None


def values(path: str) -> dict[str, np.ndarray]:
    """All values of a checkpoint, by name; TensorFlow verifies the checksum of each."""
    with no_pattern(path) as plain:
        reader = tf.train.load_checkpoint(plain)
        return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def saver(directory: str, keep: int = 2) -> Saver:
    """A saver for all global variables. Exits with a one-line error if they do not match the
    newest checkpoint in the folder."""
    results.create(directory, "--checkpoint_dir")
    path = Path(directory).resolve()
    if path.name == "best" and path.with_name("best.json").exists():
        fail(f"--checkpoint_dir {directory} holds the best parameters of a run, and a run that "
             "continues there would replace them: copy the folder first")  # fmt: skip
    if path := newest(directory):
        saved = {name: list(np.shape(value)) for name, value in values(path).items()}
        for name, shape, _ in map(saved_as, tf.global_variables()):
            had = saved.get(name, "missing")
            if had != shape:
                fail(f"the checkpoint {path} is from another model or optimizer ({name} is {had} "
                     f"there, {shape} here): use another --checkpoint_dir")  # fmt: skip
        tf.train.update_checkpoint_state(directory, path)  # TensorFlow's own calls look there
    return Saver(keep=keep)


def saved_as(variable: tf.Variable) -> tuple[str, list[int], tuple[slice, ...]]:
    """Its name and shape in a checkpoint, and which part of this array it is: the blocks of a
    variable that a partitioner has cut are saved as one, so a run can resume with more or fewer."""
    block = variable._get_save_slice_info()
    if block is None:
        return variable.op.name, variable.shape.as_list(), ()
    part = tuple(slice(at, at + n) for at, n in zip(block.var_offset, block.var_shape))
    return block.full_name, list(block.full_shape), part


def _number(path: Path) -> int:
    found = re.search(r"-(\d+)$", path.name)
    return int(found[1]) if found else -1


def _all(folder: Path) -> list[Path]:
    """The checkpoints in a folder, oldest first, as paths without their files' suffixes."""
    complete = (path.with_suffix("") for path in folder.glob("*.index") if path.stem != SAVING)
    return sorted(complete, key=_number)


def _keep_newest(path: Path, keep: int) -> None:
    """Removes all checkpoints up to this one except the newest intact ones."""
    older = [p for p in _all(path.parent) if p not in _damaged and _number(p) <= _number(path)]
    old = {p.name for p in older[:-keep] if p.name.startswith("model.ckpt-")}
    for file in path.parent.iterdir():
        if file.stem in old:
            file.unlink()


@contextlib.contextmanager
def no_pattern(path: str) -> Iterator[str]:
    """The same path, or one through a symlink if TensorFlow would treat it as a pattern."""
    if not re.search(r"[*?[\\]", path):
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        os.symlink(os.path.dirname(path), f"{folder}/link")
        yield f"{folder}/link/{os.path.basename(path)}"
