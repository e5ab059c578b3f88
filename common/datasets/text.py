"""Text as bytes, for `--model gpt`: an example is `--context` bytes, and after each the next one.

`text` is there on every machine: the modules of Python's own standard library, those files that lie
directly in its folder, in the order of their names. Every tenth file is for the test. Another
version of Python has other files, so compare numbers only within one version.

`shakespeare` is downloaded, `PATH.txt` is the user's: the last tenth of the bytes is for the test.
"""

import sysconfig
from pathlib import Path

import numpy as np

from common import fail
from common.datasets import download
from common.datasets.known import Description

VOCABULARY = 256
SHAKESPEARE, SIZE = "input.txt", 1_115_394  # bytes


def fetch(flags, say=print) -> Path:
    """Downloads the file if it is missing; returns its folder."""
    return download.fetch(flags.data, flags.data_url, say)


def read(flags, part: str) -> bytes:
    """All bytes of a part, `train` or `test`.

    Raises:
        SystemExit: with a one-line error, if the text cannot be read.
    """
    if flags.data == "text":
        files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
        if len(files) < 10:
            fail("--data text: this Python has no sources of its standard library: use --data "
                 "PATH.txt or shakespeare")  # fmt: skip
        chosen = [file for i, file in enumerate(files) if (i % 10 == 0) == (part == "test")]
        return b"".join(file.read_bytes() for file in chosen)
    shakespeare = flags.data == "shakespeare"
    path = fetch(flags) / SHAKESPEARE if shakespeare else Path(flags.data)
    try:
        found = path.read_bytes()
    except OSError as error:
        fail(f"--data {flags.data} cannot be read ({error.strerror})")
    cut = len(found) - len(found) // 10
    return found[cut:] if part == "test" else found[:cut]


def load(flags, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Blocks of the text, one after another: characters [examples, context], int32, and the
    characters that follow each of them, of the same shape. What is left at the end is not used."""
    found = np.frombuffer(read(flags, part), np.uint8).astype(np.int32)
    examples = _examples(flags, part, len(found))
    end = examples * flags.context
    shape = examples, flags.context
    return found[:end].reshape(shape), found[1 : end + 1].reshape(shape)


def describe(flags) -> Description:
    """The shape of an example, the number of characters, and how many training examples.

    Raises:
        SystemExit: with a one-line error, if a part of the text is shorter than one example.
    """
    if flags.data == "shakespeare":  # not downloaded yet
        lengths = {"test": SIZE // 10, "train": SIZE - SIZE // 10}
    else:
        lengths = {part: len(read(flags, part)) for part in ("test", "train")}
    sizes = {part: _examples(flags, part, length) for part, length in lengths.items()}
    return Description((flags.context,), VOCABULARY, sizes["train"])


def _examples(flags, part: str, length: int) -> int:
    examples = max(0, length - 1) // flags.context  # the last character has a next one, too
    if not examples:
        fail(f"--data {flags.data}: the {part} part, {length:,} bytes, is too short for "
             f"--context {flags.context}: use a longer text or a shorter context")  # fmt: skip
    return examples
