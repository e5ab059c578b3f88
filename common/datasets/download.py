"""Downloads files once, verifies them, and resumes interrupted downloads.

Not with pooch: it begins an interrupted download again, and a downloader of one's own for it, which
resumes, stops at a file that is too large and shows progress, would be most of this module. Not
with filelock: its lock is a file, which stays; here the folder itself is the lock.
"""

import contextlib
import fcntl
import hashlib
import http.client
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from common import fail
from common.record import faults, paths

# name -> (URL, {file: (the publisher's MD5, bytes)})
SOURCES = {
    "mnist": (
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        {
            "train-images-idx3-ubyte.gz": ("f68b3c2dcbeaaa9fbdd348bbdeb94873", 9_912_422),
            "train-labels-idx1-ubyte.gz": ("d53e105ee54ea40749a09fcbcd1e9432", 28_881),
            "t10k-images-idx3-ubyte.gz": ("9fb629c4189551a2d022fa330f9573f3", 1_648_877),
            "t10k-labels-idx1-ubyte.gz": ("ec29112dd5afa0611ce80d1b7f02629c", 4_542),
        },
    ),
    "fashion_mnist": (
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        {
            "train-images-idx3-ubyte.gz": ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", 26_421_880),
            "train-labels-idx1-ubyte.gz": ("25c81989df183df01b3e8a0aad5dffbe", 29_515),
            "t10k-images-idx3-ubyte.gz": ("bef4ecab320f06d8554ea6380940ec79", 4_422_102),
            "t10k-labels-idx1-ubyte.gz": ("bb300cfdad3c16e7a12a480ee83cd310", 5_148),
        },
    ),
    "cifar10": (
        "https://www.cs.toronto.edu/~kriz",
        {"cifar-10-binary.tar.gz": ("c32a1d4ab5d03f1284b67883e8d87530", 170_052_171)},
    ),
    "shakespeare": (
        "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare",
        {"input.txt": ("6fb458f1232090904fb40fe944165e91", 1_115_394)},
    ),
}
BLOCK = 1 << 18  # bytes between progress updates


def folder(name: str) -> Path:
    """The folder for a data set's files, in `$DATA_DIR` or the user's cache."""
    try:
        home = paths.local(os.environ.get("DATA_DIR") or "~/.cache/distributed-tensorflow")
    except ValueError as error:
        fail(f"DATA_DIR {error}")
    return home / name


def fetch(
    name: str,
    url: str | None = None,
    say: Callable[[str], None] = print,
    source: tuple | None = None,
) -> Path:
    """Downloads a data set's files if needed; a file appears only once its checksum matches.

    If several processes on one machine call this, the first downloads and the others wait.

    Args:
        name: a key of `SOURCES`; another name needs its `source`, in the same form.
        url: a folder to download from instead of the publisher's.
        say: called with what is being downloaded.

    Returns:
        The folder that holds the files.

    Raises:
        SystemExit: with a one-line error, if a download fails or delivers the wrong file.
    """
    publisher, files = source or SOURCES[name]
    other = "--data digits or --data synthetic, which need" if source is None else "data that needs"
    if name == "shakespeare":
        other = "--data text, which needs"
    target = folder(name)
    for file, (md5, size) in files.items():
        address, path = f"{(url or publisher).rstrip('/')}/{file}", target / file
        try:
            with alone_in(target):
                if path.exists() and _md5(path) == md5:
                    continue
                if path.exists():
                    say(f"{path} is damaged: downloading it again")
                _download(address, path, md5, size, say)
        except (OSError, http.client.HTTPException, ValueError) as error:
            if reason := faults.sentence(error, target):
                fail(reason)
            reason = getattr(error, "reason", None) or error
            fail(f"cannot download {address} ({reason}): use another source with --data_url, put "
                 f"the file into {target}, or use {other} no download")  # fmt: skip
    return target


@contextlib.contextmanager
def alone_in(place: Path) -> Iterator[None]:
    """Admits one process at a time to a folder; the others wait. The lock ends with its process.

    Creates the folder if needed; in the end, removes what it has created if nothing is in there.
    """
    made, locks = [], []
    try:
        while True:
            made += [path for path in (place, *place.parents) if not os.path.exists(path)]
            place.mkdir(parents=True, exist_ok=True)
            locks.append(os.open(place, os.O_RDONLY))
            fcntl.flock(locks[-1], fcntl.LOCK_EX)
            # While this process waited, another one may have removed the folder.
            if os.path.exists(place) and os.path.samestat(os.fstat(locks[-1]), place.stat()):
                break
        yield
    finally:
        for path in made:
            with contextlib.suppress(OSError):  # it is not empty
                path.rmdir()
        for lock in locks:
            os.close(lock)


def _md5(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _download(address: str, path: Path, md5: str, size: int, say) -> None:
    """Downloads one file of `size` bytes via `path.part`, which survives an interrupted transfer.

    Reads at most one byte more than `size`, whatever the server sends.
    """
    part = path.with_name(f"{path.name}.part")
    had = part.stat().st_size if part.exists() else 0
    answer = _open(address, had)
    if answer.status != 206:  # the server cannot resume: start over
        had = 0
    say(f"downloading {address}" + f", resuming after {had:,} bytes" * bool(had))
    with answer, open(part, "ab" if had else "wb") as out:
        length = answer.headers.get("Content-Length")
        wanted = had + int(length) if length else None
        with _progress(had, wanted, say) as advance, contextlib.suppress(
            http.client.IncompleteRead, ConnectionError, TimeoutError  # counted below
        ):  # fmt: skip
            while had <= size and (block := answer.read(min(BLOCK, size + 1 - had))):
                out.write(block)
                had += len(block)
                advance(len(block))
    got = part.stat().st_size
    if got > size:
        part.unlink()
        fail(f"{address} is not the expected file (it is larger than {size:,} bytes): use "
             "another source with --data_url")  # fmt: skip
    if wanted and got < wanted:
        fail(f"the download of {address} stopped after {got:,} of {wanted:,} bytes: run again to "
             "resume it")  # fmt: skip
    found = _md5(part)
    if found != md5:
        part.unlink()
        fail(f"{address} is not the expected file (its MD5 is {found}, not {md5}): use "
             "another source with --data_url")  # fmt: skip
    os.replace(part, path)


def _open(address: str, had: int) -> http.client.HTTPResponse:
    """Requests what follows the first `had` bytes, or everything if the server cannot resume."""
    if not had:
        return urllib.request.urlopen(address, timeout=30)
    rest = urllib.request.Request(address, headers={"Range": f"bytes={had}-"})
    try:
        answer = urllib.request.urlopen(rest, timeout=30)
    except urllib.error.HTTPError as error:
        if error.code != 416:  # 416: nothing follows the first `had` bytes
            raise
        return _open(address, 0)
    said = answer.headers.get("Content-Range", "")
    if answer.status == 206 and not said.startswith(f"bytes {had}-"):
        answer.close()
        return _open(address, 0)
    return answer


@contextlib.contextmanager
def _progress(had: int, wanted: int | None, say) -> Iterator[Callable[[int], None]]:
    """Shows a progress bar on a terminal, and elsewhere a line every ten seconds."""
    if sys.stdout.isatty():
        from rich import progress  # late: most runs download nothing

        columns = (progress.BarColumn(), progress.DownloadColumn(),
                   progress.TransferSpeedColumn(), progress.TimeRemainingColumn())  # fmt: skip
        with progress.Progress(*columns, transient=True) as shown:
            bar = shown.add_task("", total=wanted, completed=had)
            yield lambda size: shown.advance(bar, size)
        return
    got, due = had, time.monotonic() + 10

    def advance(size):
        nonlocal got, due
        got += size
        if time.monotonic() > due:
            due = time.monotonic() + 10
            say(f"{got / 1e6:,.0f} MB" + (f" of {wanted / 1e6:,.0f} MB" if wanted else ""))

    yield advance
