"""The best parameters of a run, and when to stop looking for better ones: `--patience`.

Prechelt 1998, "Early Stopping - But When?": stop when the validation error has not improved for so
many evaluations in a row. (https://doi.org/10.1007/3-540-49430-8_3)
"""

import json
import math
import os
from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from common import fail
from common.record import results
from common.training import checkpoints

FOLDER, NOTE = "best", "best.json"  # in --checkpoint_dir


class Best:
    """Keeps a checkpoint of the best parameters so far, exactly those that were evaluated.

    It is a whole one, in a folder of its own. A note beside this folder says how good it is, so
    that a restarted chief, or a run that continues, knows.
    """

    def __init__(
        self, flags, variables: Sequence[tf.Variable], copies: Sequence[tf.Variable], what: dict
    ):
        """
        Args:
            flags: the command line, for `--checkpoint_dir`.
            variables: the global variables without `global_step`.
            copies: local variables, which hold the values of `variables` at an evaluation.
            what: what is compared: `metric`, its name; `lower`, whether less is better; how many
                `examples`.

        Exits with a one-line error if the folder keeps the best of something else.
        """
        self._folder = results.create(f"{flags.checkpoint_dir}/{FOLDER}", "--checkpoint_dir")
        self._copies, self._what = copies, what
        self._saved_as = [checkpoints.saved_as(each) for each in variables]
        blocks = [each._get_save_slice_info() for each in variables]
        count = tf.train.get_global_step().op.name
        with tf.device("/cpu:0"):
            self._path, self._number = tf.placeholder(tf.string), tf.placeholder(tf.int64)
            self._save = tf.raw_ops.SaveV2(
                prefix=self._path,
                tensor_names=[*[name for name, _, _ in self._saved_as], count],
                shape_and_slices=[*[block.spec if block else "" for block in blocks], ""],
                tensors=[*[each.read_value() for each in copies], self._number],
            )
        self._file = self._folder.with_name(NOTE)
        self._note = json.loads(self._file.read_text()) if self._file.exists() else {}
        if self._note:
            if checkpoints.newest(flags.checkpoint_dir) is None:
                fail(f"{self._folder} is of another run, whose checkpoints are gone: delete it and "
                     f"{self._file}, or use another --checkpoint_dir")  # fmt: skip
            if any(self._note[name] != value for name, value in what.items()):
                had = {name: self._note[name] for name in what}
                fail(f"{self._file} compares {had}, and this run {what}: use another "
                     "--checkpoint_dir")  # fmt: skip
            if not int(os.environ.get("TASK_RESTARTS", 0)):  # a new run has new patience
                self._note["not_better"] = 0

    def look(self, session: tf.Session, number: int, value: float) -> int:
        """Takes note of an evaluation of the copies, which contain `number` updates, and keeps them
        if they are the best so far. Returns how many evaluations in a row were not better."""
        known = self._note.get("value")
        better = known is None or (value < known if self._what["lower"] else value > known)
        if better and not math.isnan(value):
            path = f"{self._folder}/{checkpoints.SAVING}"
            session.run(self._save, {self._path: path, self._number: number})
            checkpoints.complete(path, keep=2)  # also the one that the note still names
            self._say({"global_step": number, "value": value, "not_better": 0, **self._what})
            for file in self._folder.glob("model.ckpt-*"):  # after a ps was lost: later ones, too
                if file.stem != f"model.ckpt-{number}":
                    file.unlink()
        elif self._note:
            self._say(self._note | {"not_better": self._note["not_better"] + 1})
        return self._note.get("not_better", 0)

    def restore(self, session: tf.Session) -> int | None:
        """Puts the best values into the copies. Returns how many updates they contain; None if no
        evaluation gave a number."""
        if not self._note:
            return None
        number = self._note["global_step"]
        found = checkpoints.values(f"{self._folder}/model.ckpt-{number}")
        for copy, (name, _, part) in zip(self._copies, self._saved_as, strict=True):
            copy.load(found[name][part], session)
        return number

    def _say(self, note: dict) -> None:
        text = json.dumps(note) + "\n"
        results.write(self._file, lambda file: file.write(text.encode()))
        self._note = note
