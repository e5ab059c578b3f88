"""The three notebooks of Multiple-Workers find each other, although the ps comes last."""

import getpass
import json
import subprocess
import sys

import pytest
from conftest import ROOT, environment, eventually
from machine import seconds

pytestmark = pytest.mark.slow("notebooks that wait for each other")

FOLDER = ROOT / "Basics-Tutorial" / "Multiple-Workers"
NOTEBOOKS = {"ps": "Parameter-Server", "worker-1": "Worker-1", "worker-2": "Worker-2"}


def execute(role, tmp_path):
    name = f"{NOTEBOOKS[role]}.ipynb"
    patience = str(round(seconds(60)))
    shorter = ["-p", "patience", patience, *(["-p", "rounds", "30"] if role != "ps" else [])]
    return subprocess.Popen(
        [sys.executable, "-m", "papermill", "--kernel", "python3", "--no-progress-bar",
         "--execution-timeout", patience, "--cwd", str(FOLDER), *shorter,
         str(FOLDER / name), str(tmp_path / name)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(TMPDIR=str(tmp_path)),
    )  # fmt: skip


def printed(path) -> str:
    cells = json.loads(path.read_text())["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    return "".join("".join(output.get("text", [])) for output in outputs)


def test_they_find_each_other(tmp_path):
    meeting = tmp_path / f"multiple-workers-{getpass.getuser()}"
    meeting.mkdir(mode=0o700)  # a dead run left its files
    dead = json.dumps({"ps": ["localhost:1"], "worker": ["localhost:2", "localhost:3"]})
    (meeting / "cluster.json").write_text(dead)
    (meeting / "worker-1.lock").touch()
    running = []
    try:
        for role in ("worker-2", "worker-1", "ps"):
            running.append(execute(role, tmp_path))
            lock = meeting / f"{role}.lock"
            if role == "worker-2":  # the others start after this one chooses the addresses
                assert eventually(lambda lock=lock: lock.exists(), 30)
                assert eventually(lambda: (meeting / "cluster.json").read_text() != dead, 5)
        outputs = [task.communicate(timeout=seconds(60))[0] for task in running]
    finally:
        for task in running:
            task.terminate()
    assert [task.returncode for task in running] == [0, 0, 0], "\n".join(outputs)
    assert "62 pushes in all" in printed(tmp_path / "Parameter-Server.ipynb")
    for k in (1, 2):
        assert f"Worker {k} has left" in printed(tmp_path / f"Worker-{k}.ipynb")
    assert not meeting.exists()
