"""The best parameters of a run, and when to stop looking for better ones: `--patience`.

Prechelt 1998, "Early Stopping - But When?": stop when the validation error has not improved for so
many evaluations in a row. (https://doi.org/10.1007/3-540-49430-8_3)
"""

import json
import math
from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from common.record import results
from common.training import checkpoints

FOLDER = "best"  # in --checkpoint_dir
NOTE = "best.json"


class Best:
    """Keeps a checkpoint of the best parameters so far, exactly those that were evaluated.

    It is a whole one, in a folder of its own, so a run can continue from it. A note beside it says
    how good it is, so that a restarted chief, or a run that continues, knows.
    """

    def __init__(self, flags, variables: Sequence[tf.Variable], copies: Sequence[tf.Variable]):
        """
        Args:
            flags: the command line, for `--patience` and `--checkpoint_dir`.
            variables: the global variables without `global_step`.
            copies: local variables, which hold the values of `variables` at an evaluation.
        """
        self._folder = results.create(f"{flags.checkpoint_dir}/{FOLDER}", "--checkpoint_dir")
        self._patience, self._copies = flags.patience, copies
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
        note = self._folder / NOTE
        self._note = json.loads(note.read_text()) if note.exists() else {}

    def look(self, session: tf.Session, number: int, value: float, lower: bool) -> int:
        """Takes note of an evaluation of the copies, which contain `number` updates, and keeps them
        if they are the best so far. Returns how many evaluations in a row were not better."""
        known = self._note.get("value")
        better = known is None or (value < known if lower else value > known)
        if better and not math.isnan(value):
            path = f"{self._folder}/{checkpoints.SAVING}"
            session.run(self._save, {self._path: path, self._number: number})
            checkpoints.complete(path, keep=1)
            self._say({"global_step": number, "value": value, "not_better": 0})
            for file in self._folder.glob("model.ckpt-*"):  # after a ps was lost: later ones, too
                if file.stem != f"model.ckpt-{number}":
                    file.unlink()
        elif self._note:
            self._say(self._note | {"not_better": self._note["not_better"] + 1})
        return self._note.get("not_better", 0)

    def is_over(self, session: tf.Session, number: int, value: float, lower: bool) -> bool:
        """`look`; whether to stop."""
        return self.look(session, number, value, lower) >= self._patience

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
        results.write(self._folder / NOTE, lambda file: file.write(text.encode()))
        self._note = note
