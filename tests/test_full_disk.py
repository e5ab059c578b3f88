"""A disk that fills up at different moments of a run: a one-line error names it."""

import re
import shutil
import subprocess

import pytest
import test_data
from conftest import ENDLESS, ROOT, environment
from machine import seconds

pytestmark = pytest.mark.slow("a run for each disk size")

# Mounts a disk of $1 kilobytes at $2, runs the other arguments there, and prints the space used.
SCRIPT = """
mount -t tmpfs -o size=$1k none "$2" || exit 77
cd "$2"; shift 2
"$@"
code=$?
df -k . | awk 'END { print "used", $3 }'
exit $code
"""


@pytest.fixture
def on_a_disk(tmp_path):
    """`on_a_disk(kilobytes, "HogWild", flags)` -> (exit code, screen, kilobytes used)."""
    if not shutil.which("unshare"):
        pytest.skip("needs the unshare command (util-linux)")
    disk = tmp_path / "disk"
    disk.mkdir()

    def _run(kilobytes, example, *flags):
        command = ["bash", str(ROOT / example / "run.sh"), "--plain", "--results", "mine"]
        done = subprocess.run(
            ["unshare", "-rm", "bash", "-c", SCRIPT, "-", str(kilobytes), str(disk), *command,
             *map(str, flags)],
            capture_output=True, text=True, env=environment(), timeout=seconds(120),
        )  # fmt: skip
        if done.returncode in (1, 77) and "used" not in done.stdout:
            pytest.skip(f"this system does not let us mount a disk: {done.stderr.strip()}")
        screen, _, used = done.stdout.rpartition("used ")
        return done.returncode, screen + done.stderr, int(used)

    return _run


def assert_named(code: int, screen: str) -> None:
    assert code == 2, screen
    errors = [line for line in screen.splitlines() if line.startswith("error:")]
    assert len(errors) == 1, screen
    full = r"error: (the disk is full: make room in \S+/disk/mine|cannot write to \S+/disk/mine\S* "
    assert re.match(full + r"\(No space left on device\))", errors[0]), errors[0]
    assert "Traceback" not in screen


def test_a_disk_slightly_too_small_for_each_stage(on_a_disk):
    """From the first file to the last: each size is a fraction of what a run needs."""
    example = ("Non-Distributed-Setup", "--steps", 60)
    code, screen, used = on_a_disk(100_000, *example)
    assert code == 0, screen
    for part in (0.02, 0.5, 0.95):
        assert_named(*on_a_disk(round(part * used), *example)[:2])


@pytest.mark.parametrize(
    ("example", "kilobytes", "flags"),
    [
        ("HogWild", 600, ()),
        # A policy that does not learn never ends the run, and its games stay short.
        ("Actor-Learner", 300, ("--workers", 1, "--learning_rate", 1e-9)),
        ("TensorFlow-2", 300, ("--workers", 1)),
    ],
)
def test_a_disk_that_fills_up_while_workers_train(on_a_disk, example, kilobytes, flags):
    """In the latter two, the chief writes all workers' events."""
    code, screen, _ = on_a_disk(kilobytes, example, "--steps", ENDLESS, *flags)
    assert_named(code, screen)
    assert re.search(r"^\[worker \d\] step \d+ ", screen, re.M)  # it had trained until then


def test_no_room_for_a_download(on_a_disk, tmp_path, monkeypatch):
    monkeypatch.setenv("DATA_DIR", "cache")  # on the disk on which the command runs
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = test_data.Server()
    try:
        name = "train-images-idx3-ubyte.gz"
        server.bodies[f"/{name}"] = bytes(9_000_000)
        code, screen, _ = on_a_disk(
            1024, "HogWild", "--data", "mnist", "--data_url", server.url, "--network", "host"
        )
    finally:
        server.close()
    assert code == 2, screen
    assert screen.rstrip().splitlines()[-1] == (
        f"error: the disk is full: make room in {tmp_path / 'disk/cache/mnist'}, "
        "or set DATA_DIR to another folder"
    )
