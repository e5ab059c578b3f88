"""Downloads: once, checked, whole or not at all."""

import contextlib
import hashlib
import http.client
import os
import urllib.request
from pathlib import Path

from common import fail

# name -> (where, {file: md5 as its publisher gives it})
SOURCES = {
    "mnist": (
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        {
            "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        },
    ),
    "fashion_mnist": (
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        {
            "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
        },
    ),
    "cifar10": (
        "https://www.cs.toronto.edu/~kriz",
        {"cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a"},
    ),
}


def folder(name: str) -> Path:
    """Where a data set's files are kept: `$DATA_DIR`, or the user's cache."""
    home = os.environ.get("DATA_DIR") or Path.home() / ".cache" / "distributed-tensorflow"
    return Path(home) / name


def _md5(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def fetch(name: str, url: str | None = None, say=print) -> Path:
    """Makes sure that a data set's files are here; a file appears only when its checksum fits.

    Args:
        name: a key of `SOURCES`.
        url: a folder to download from instead of the publisher's.
        say: told what is being downloaded.

    Returns:
        The folder that holds the files.

    Raises:
        SystemExit: with one sentence, where a file cannot be had, or is not what it should be.
    """
    source, files = SOURCES[name]
    source = (url or source).rstrip("/")
    target = folder(name)
    for file, md5 in files.items():
        path = target / file
        if path.exists():
            if _md5(path) == md5:
                continue
            say(f"{path} is damaged: downloading it again")
        part = path.with_name(f"{file}.{os.getpid()}.part")
        try:
            target.mkdir(parents=True, exist_ok=True)
            say(f"downloading {source}/{file}")
            with urllib.request.urlopen(f"{source}/{file}", timeout=30) as answer:
                length = answer.headers.get("Content-Length")
                with open(part, "wb") as out:
                    while block := answer.read(1 << 20):
                        out.write(block)
            got = part.stat().st_size
            if length and got != int(length):
                fail(f"{source}/{file} broke off after {got} of {length} bytes: run again")
            if _md5(part) != md5:
                fail(f"{source}/{file} is not the file it should be (its MD5 is {_md5(part)}, "
                     f"not {md5}): name a good source with --data_url")  # fmt: skip
            os.replace(part, path)
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            fail(f"cannot download {source}/{file} ({reason}): name another source with "
                 f"--data_url, or put the file into {target}")  # fmt: skip
        finally:
            with contextlib.suppress(OSError):
                part.unlink()
    return target
