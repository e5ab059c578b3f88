"""`--link_mbit`: the private network is as slow as requested, and the summary has its traffic."""

import importlib.util
import json
import subprocess
import sys

import machine
import pytest
from conftest import ROOT, environment
from machine import seconds
from test_flags import assert_one_sentence

from common.launch import link, network
from common.record import results
from common.record.summary import _sent

WHY = network.can_be_private(100)
needs_a_link = pytest.mark.skipif(bool(WHY), reason=WHY)
SEND = """
import json, socket, sys, threading, time
from common.launch import link, network
mbit, size = float(sys.argv[1]), int(sys.argv[2])
network.choose("private", print, mbit)
server = socket.create_server(("127.0.0.1", 0))
sender = socket.create_connection(server.getsockname())
threading.Thread(target=sender.sendall, args=[bytes(size)], daemon=True).start()
receiver, _ = server.accept()
before, began, got = link.bytes_sent(), time.monotonic(), 0
while got < size:
    got += len(receiver.recv(2**20))
print(json.dumps([time.monotonic() - began, link.bytes_sent() - before]))
"""


@needs_a_link
@pytest.mark.parametrize("mbit", [0.5, 8, 100])
def test_the_link_is_as_slow_as_requested(mbit):
    """Sends half a second of traffic: no machine is faster, and a busy one may be slower."""
    size = int(0.5 * mbit * 1e6 / 8)
    command = [sys.executable, "-c", SEND, str(mbit), str(size)]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True,
                          timeout=seconds(60))  # fmt: skip
    took, sent = json.loads(done.stdout)
    # The thread may have sent a burst (what passes at once after a pause) before the clock started.
    assert took > 0.35
    assert sent * 8e-6 / mbit < took + 0.06  # never more than the link carries


@needs_a_link
@pytest.mark.parametrize("mbit", [1, 1000, None])
def test_tcp_sends_alike_on_every_link(mbit):
    """Whatever this machine's settings are, which a network without a limit keeps."""
    there = [name for name in link.TCP if (link.SYSCTL / name).exists()]  # not on an old kernel
    code = f"from common.launch import link, network; network.choose('private', print, {mbit}); "
    code += f"print(*[(link.SYSCTL / name).read_text().strip() for name in {there}])"
    done = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, env=environment())
    own = [(link.SYSCTL / name).read_text().strip() for name in there]
    assert done.decode().split() == ([link.TCP[name] for name in there] if mbit else own)


def test_the_bucket():
    """A burst of 0.2 ms, but at least two packets; a queue of 0.4 s, but at least 20 packets."""
    assert link.bucket(1000) == {"rate": 125_000_000, "burst": 25_000, "limit": 50_025_000}
    assert link.bucket(0.1) == {"rate": 12_500, "burst": 3000, "limit": 33_000}


@needs_a_link
@pytest.mark.slow("5 seconds over a slow link")
@pytest.mark.parametrize("workers", [2, 4])
def test_the_link_is_the_limit_of_a_run(run, workers):
    """HogWild's 101,770 parameters there and back: at most 15.35 steps/s over 100 Mbit/s."""
    payload = 2 * 4 * (784 * 128 + 128 + 128 * 10 + 10)
    most = 100e6 / 8 / payload
    flags = ["--data", "synthetic", "--batch_size", 64, "--steps", 70]
    finished = run("HogWild", *flags, "--workers", workers, "--link_mbit", 100)
    summary = finished.summary
    rate = summary["global_step"] / summary["seconds"]
    assert payload < summary["bytes_per_step"] < 1.2 * payload
    assert rate < most
    assert summary["link_use"] == pytest.approx(rate * summary["bytes_per_step"] * 8e-8)
    assert 0.5 / machine.slowness() < summary["link_use"] < 1.02
    assert f"bytes per step, {summary['link_use']:.0%} of 100 Mbit/s" in finished.output
    # Other load may have started during the run.
    assert rate > 0.85 * most / max(machine.slowness(), machine.measured())


@pytest.mark.skipif(bool(network.can_be_private()), reason=network.can_be_private())
@pytest.mark.slow("tests the network, not a scheme")
def test_a_run_without_a_slow_link_counts_its_bytes(default_run):
    finished = default_run("HogWild")
    payload = 2 * 4 * (64 * 128 + 128 + 128 * 10 + 10)
    assert payload < finished.summary["bytes_per_step"] < 1.2 * payload
    assert finished.summary["link_use"] is None
    noted = results.Tail(finished.results / "network.jsonl").read()
    assert noted == sorted(noted, key=lambda note: (note["time"], note["bytes"]))
    sent = finished.summary["bytes_per_step"] * finished.summary["global_step"]
    assert sent <= noted[-1]["bytes"] - noted[0]["bytes"]


def test_traffic_between_two_times(tmp_path):
    """Interpolates linearly between two notes."""
    assert _sent(tmp_path, [(1.0, 2.0)]) is None
    notes = [{"time": t, "bytes": b} for t, b in ((0.0, 5), (1.0, 5), (2.0, 105), (3.0, 205))]
    (tmp_path / "network.jsonl").write_text("".join(json.dumps(note) + "\n" for note in notes))
    assert _sent(tmp_path, [(0.5, 2.5)]) == 150
    assert _sent(tmp_path, [(1.25, 1.75)]) == 50


def test_no_link_to_be_had(monkeypatch, capsys):
    monkeypatch.setattr(network, "can_be_private", lambda mbit=None: "token bucket filter: gone")
    with pytest.raises(SystemExit) as ended:
        network.choose("auto", print, 100.0)
    assert ended.value.code == 2
    assert_one_sentence(
        capsys.readouterr().err, "--link_mbit 100", "filter: gone", "common.commands.doctor"
    )


@needs_a_link
def test_a_python_without_pyroute2(monkeypatch):
    """It may have a private network, but no slow link, and says why."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert network.can_be_private() == ""
    assert network.can_be_private(100) == f"{sys.executable} lacks the package pyroute2"
