"""CIFAR-10, in its publisher's binary format."""

import os
import shutil
import tarfile
import zlib
from pathlib import Path, PurePosixPath

import numpy as np

from common import fail
from common.datasets import download
from common.record import faults

ARCHIVE, FOLDER = "cifar-10-binary.tar.gz", "cifar-10-batches-bin"
FILES = {"train": [f"data_batch_{i}.bin" for i in range(1, 6)], "test": ["test_batch.bin"]}
RECORD = 1 + 3 * 32 * 32  # bytes: the label, then 1,024 each of red, green and blue, row by row


def folder() -> Path:
    """The folder for the extracted files."""
    return download.folder("cifar10") / FOLDER


def fetch(flags, say=print) -> Path:
    """Downloads the archive if it is missing, and extracts it once.

    Returns:
        The folder with the extracted files. It appears once they are all complete.
    """
    target = folder()
    if not target.is_dir():
        place = download.fetch("cifar10", flags.data_url, say)
        with download.alone_in(place):
            if not target.is_dir():
                extract(place / ARCHIVE, target)
    return target


def extract(archive: Path, target: Path) -> None:
    """Extracts only the files that hold images, into the new folder `target`.

    Raises:
        SystemExit: with a one-line error and nothing extracted, if the archive is damaged, is not
            CIFAR-10, or holds a path outside its folder.
    """
    part = target.with_name(f"{target.name}.part")
    shutil.rmtree(part, ignore_errors=True)  # left by a killed process
    wanted = {f"{FOLDER}/{name}": part / name for names in FILES.values() for name in names}
    try:
        part.mkdir()
        with tarfile.open(archive) as source:
            for member in source:
                inside = PurePosixPath(member.name)
                if inside.is_absolute() or ".." in inside.parts or "\\" in member.name:
                    raise ValueError(f"{member.name!r} is outside the archive's folder")
                path = wanted.get(str(inside))
                if path is None:
                    continue
                if not member.isreg():  # a link could point anywhere
                    raise ValueError(f"{member.name} is not a file")
                with open(path, "wb") as out:
                    shutil.copyfileobj(source.extractfile(member), out)
                if path.stat().st_size != member.size or not member.size or member.size % RECORD:
                    raise ValueError(f"{member.name} does not consist of records of {RECORD} bytes")
        missing = [name for name, path in wanted.items() if not path.exists()]
        if missing:
            raise ValueError(f"it lacks {missing[0]}")
        os.replace(part, target)
    except (OSError, EOFError, ValueError, tarfile.TarError, zlib.error) as error:
        if reason := faults.sentence(error, target.parent):
            fail(reason)
        why = str(error).partition(":\n")[0]  # tarfile adds a line per compression format
        fail(f"{archive} cannot be extracted ({why}): delete it and run again to download it")
    finally:
        shutil.rmtree(part, ignore_errors=True)


def load(flags, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Images [examples, 32, 32, 3], bytes, and labels [examples]."""
    paths = [fetch(flags) / name for name in FILES[part]]
    return tuple(np.concatenate(parts) for parts in zip(*map(read, paths)))


def read(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Reads one file: images [records, 32, 32, 3] and labels [records], bytes.

    Raises:
        SystemExit: with a one-line error, if the file is damaged.
    """
    content = np.fromfile(path, np.uint8) if path.is_file() else np.empty(0, np.uint8)
    records = content[: len(content) // RECORD * RECORD].reshape(-1, RECORD)
    if not content.size or content.size != records.size or records[:, 0].max() > 9:
        fail(f"{path} is damaged: delete {path.parent} and run again to extract it")
    return records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), records[:, 0]
