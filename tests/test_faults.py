"""The fault matrix: a small part of it, and its judgement. `faults.py` measures all of it."""

import os
import signal
import subprocess
import sys

import fault_runs
import fault_soak
import fault_table
import faults
import pytest
from conftest import ROOT, environment
from machine import seconds

from common.launch import network

COMMAND = [sys.executable, str(ROOT / "measure" / "faults.py")]
LIKE = {"example": "HogWild", "fault": "none", "asked": 1000, "lines": 1000, "times": 1,
        "trained": 2.0, "chief_has_all": False}  # fmt: skip
GOOD = {
    "example": "HogWild", "fault": "kill", "who": "worker", "moment": "middle", "struck": True,
    "code": 0, "made": 1000, "says": "the last line", "traceback": False, "lost": 3.0, "broken": 0,
    "events_missing": 0, "events_twice": 0, "updates_missing": 0, "updates_twice": 0,
    "processes": [], "ports": [], "files": [],
}  # fmt: skip


@pytest.mark.slow("four runs: the ps, the chief and a worker die")
def test_every_task_is_killed_once(tmp_path):
    """The launcher: `test_ends.py`."""
    into = tmp_path / "found"
    done = subprocess.run(
        [*COMMAND, "--quick", "--jobs", "2", "--into", str(into)], text=True, capture_output=True,
        env=environment(PYTHONPATH=str(ROOT), NO_CURVES="1"), timeout=seconds(240),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = {fault_runs.key(record): record for record in fault_runs.read(into)}
    assert {cell.who for cell in found} == {"", "ps", "chief", "worker"}
    for cell, record in found.items():
        assert record["code"] == 0
        like = found[fault_runs.like_of(cell)]
        assert record["made"] == like["asked"]
        assert fault_table.wrong(record, like) == []
        assert not any(record[what] for what in ("processes", "ports", "files"))
    assert "| HogWild | 3 of 3" in done.stdout
    for who in ("ps", "chief"):
        assert f"| {who}: SIGKILL | 1 | 0 | all | " in done.stdout
    again = subprocess.run([*COMMAND, "--quick", "--into", str(into)], text=True,
                           env=environment(PYTHONPATH=str(ROOT)), capture_output=True)  # fmt: skip
    assert again.returncode == 0
    assert "3 cells, 3 already measured" in again.stdout


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, []),
        ({"code": 1}, ["exit code 1: the last line"]),
        ({"code": None}, ["exit code None: the last line"]),
        ({"made": 999}, ["999 of 1000 updates"]),
        ({"made": 1001}, ["1001 of 1000 updates"]),
        ({"traceback": True}, ["a traceback on the screen"]),
        ({"events_missing": 500}, []),  # of a killed worker: a second
        ({"events_missing": 501}, ["501 missing in the events"]),
        ({"events_twice": 1}, []),
        ({"events_twice": 2}, ["2 twice in the events"]),
        ({"events_twice": 2000, "who": "ps"}, []),
        ({"events_twice": 2001, "who": "ps"}, ["2001 twice in the events"]),
        ({"events_missing": 1, "fault": "stop"}, ["1 missing in the events"]),
        ({"updates_twice": 1, "fault": "cut"}, ["1 twice in the updates"]),
        ({"broken": 1}, ["1 lines that cannot be read"]),
        ({"processes": ["python ps.py"]}, ["1 processes left: python ps.py"]),
        ({"lost": 61}, ["61 s longer"]),
        ({"lost": 61, "fault": "stop"}, []),
        ({"struck": False}, ["the moment had already passed in every attempt"]),
        ({"who": "launcher"}, ["exit code 0: the last line"]),
        ({"who": "launcher", "code": -9, "made": None, "events_missing": 900}, []),
        ({"who": "launcher", "fault": "term", "code": 143, "made": None}, []),
        ({"who": "launcher", "fault": "term", "made": None}, ["None of 1000 updates"]),
        ({"example": "TensorFlow-2", "made": 1001, "events_twice": 900}, []),
    ],
)
def test_what_should_become_of_it(changes, words):
    assert fault_table.wrong(GOOD | changes, LIKE) == words


def test_the_table_has_what_was_seen():
    """By who and fault: of how many runs, and the worst of them."""
    other = LIKE | {"example": "AGN", "asked": 100}
    early = {"who": "launcher", "code": -9, "made": None, "events_missing": 900}
    runs = [
        {"events_missing": 3, "updates_twice": 7, "lost": 2.0, "files": ["a", "b"]},
        {"example": "AGN", "made": 100, "events_twice": 5, "updates_missing": 2, "lost": 9.5,
         "files": ["c"]},
        {"code": 1, "made": None, "events_missing": 800, "lost": 70.0, "ports": [1]},
        early, early | {"processes": ["python ps.py"]},
        {"fault": "stop", "made": 998, "lost": -1.0}, {"fault": "stop", "made": 1001, "lost": 4.0},
        {"fault": "term", "code": None, "made": None},
    ]  # fmt: skip
    soak = {"example": "HogWild", "fault": "soak", "who": "runs"}
    _, _, *rows = fault_table.numbers([LIKE, other, soak, *[GOOD | changes for changes in runs]])
    assert [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows] == [
        ["worker: SIGKILL", "3", "0 (2), 1 (1)", "all", "3", "5", "2", "7", "+5.8", "+9.5",
         "0", "1", "3"],
        ["launcher: SIGKILL", "2", "-9", *[""] * 7, "1", "0", "0"],
        ["worker: stopped for 20 s", "2", "0", "-2 to +1", *["0"] * 4, "+1.5", "+4.0", *["0"] * 3],
        ["worker: SIGTERM", "1", "none", *[""] * 7, *["0"] * 3],
    ]  # fmt: skip


def test_the_roles_are_the_launchers(capsys):
    """And there are cells only for the roles that an example has."""
    both = {"worker": "worker 1", "launcher": "launcher"}
    assert fault_runs.tasks("HogWild") == both | {"ps": "ps 0", "chief": "worker 0"}
    assert fault_runs.tasks("Actor-Learner") == both | {"chief": "chief 0"}
    mirrored = "TensorFlow-2 --strategy multi_worker_mirrored"
    assert fault_runs.tasks(mirrored).keys() == {"chief", "worker", "launcher"}
    assert fault_runs.tasks("Non-Distributed-Setup").keys() == {"chief", "launcher"}
    faults, moments = ["kill", "stop", "cut", "two"], ["start", "middle", "end"]
    cells = fault_runs.matrix(["HogWild"], faults, moments)
    assert len(cells) == 3 * (4 + 4 + (not network.can_be_private()) + 2)
    cells = fault_runs.matrix(["Non-Distributed-Setup"], faults, moments)
    assert {cell.who for cell in cells} == {"chief", "launcher"}
    assert "Non-Distributed-Setup has no ps and no other worker" in capsys.readouterr().out


def test_only_other_code_makes_a_cell_void():
    text = 'def double(x):\n    """Twice."""\n    return 2 * x\n'
    others = text.replace("Twice", "Two times"), text.replace("2 * x", "(2 *  x)  # twice")
    assert {fault_runs.code(other) for other in others} == {fault_runs.code(text)}
    assert fault_runs.code(text.replace("2 * x", "3 * x")) != fault_runs.code(text)


def test_the_committed_matrix_is_complete():
    """Every cell of every example, the undisturbed runs and the soaks; no failure; each once; and
    the page shows them."""
    records = fault_runs.read(faults.FOUND)
    cells = [fault_runs.key(record) for record in records]
    every = faults.everything()
    wanted = fault_runs.matrix(every, faults.FAULTS, faults.MOMENTS)  # without links: no cut
    wanted += [fault_runs.Cell(name, "none", "", "") for name in every]
    wanted += [fault_runs.Cell(fault_soak.EXAMPLE, "soak", "runs", "")]
    wanted += [fault_runs.Cell(name, "soak", "long", "") for name in fault_soak.LONG]
    assert len(cells) == len({*cells})
    assert {*wanted} <= {*cells}
    assert {cell.fault for cell in {*cells} - {*wanted}} <= {"cut"}
    assert fault_table.all_wrong(records) == []
    assert faults.TABLE.read_text(encoding="utf-8") == fault_table.text(records)


@pytest.mark.skipif(bool(network.can_be_private()), reason=network.can_be_private())
def test_a_pulled_cable_loses_what_is_sent_meanwhile(tmp_path):
    """TCP delivers it later; nobody is told that something is wrong."""
    code = """
import socket, subprocess, sys, time
from common.launch import network
network.choose("private", print)
server = socket.create_server(("127.0.0.1", 0))
sender = socket.create_connection(server.getsockname())
receiver, _ = server.accept()
print("ready", flush=True)
sys.stdin.readline()
began = time.monotonic()
sender.sendall(b"x")
print(receiver.recv(1), time.monotonic() - began, flush=True)
sys.stdin.readline()
"""
    talk = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=environment(PYTHONPATH=str(ROOT)), bufsize=1,
    )  # fmt: skip
    assert talk.stdout.readline() == "ready\n"
    pull = [sys.executable, str(ROOT / "measure" / "cable.py"), str(talk.pid), "2"]
    cable = subprocess.Popen(pull, stdout=subprocess.PIPE, text=True, env=environment())
    assert cable.stdout.readline() == "cut\n"
    talk.stdin.write("\n")
    got, took = talk.stdout.readline().split()
    assert got == "b'x'"
    assert float(took) > 1.5
    assert cable.wait() == 0
    talk.communicate("\n")


def test_ctrl_c_keeps_what_is_there(tmp_path):
    """And says that the same command continues."""
    into = tmp_path / "found"
    process = subprocess.Popen(
        [*COMMAND, "--quick", "--into", str(into)], text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, env=environment(PYTHONPATH=str(ROOT)),
    )  # fmt: skip
    assert "3 cells, 0 already measured" in process.stdout.readline()
    os.kill(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=seconds(30))
    assert process.returncode == 130, output
    assert output.rstrip().endswith("the same command continues")
    assert fault_runs.read(into) == []
