"""The doctor passes a healthy machine; each fault gets one line with its fix."""

import importlib.metadata
import re
import shutil
import subprocess
import sys
import types

import psutil
import pytest
from conftest import ROOT, environment
from machine import seconds
from packaging.requirements import Requirement

from common.commands import doctor
from common.launch import network

# In a private network if possible, so that other programs' ports do not matter.
PRELUDE = """
import runpy, socket, sys
from common.launch import network
network.choose("auto", lambda warning: None)
"""


def examine(sabotage: str = "", **more: str) -> tuple[int, list[str]]:
    """Runs the doctor as a process; returns its exit code and its lines."""
    script = f"{PRELUDE}{sabotage}\nrunpy.run_module('common.commands.doctor', run_name='__main__')"
    env = environment()
    for name in doctor.PROXIES:
        env.pop(name, None)
        env.pop(name.upper(), None)
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=env | more,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=seconds(120),
    )
    assert done.stderr == ""
    for line in done.stdout.splitlines():
        assert re.fullmatch(r"\[OK\]   \S.*|\[FAIL\] \S.* -> \S.*", line)
    return done.returncode, done.stdout.splitlines()


def failures(lines: list[str]) -> list[str]:
    """The failed lines, except the one about private networks if this system has none."""
    failed = [line for line in lines if line.startswith("[FAIL]")]
    if network.can_be_private():
        (told,) = [line for line in failed if "no private networks" in line]
        failed.remove(told)
    return failed


def problem(check, *arguments) -> tuple[str, str]:
    """The problem that a check reports, and its fix."""
    with pytest.raises(doctor.Problem) as caught:
        check(*arguments)
    return caught.value.args


@pytest.mark.usefixtures("default_ports")
@pytest.mark.slow("starts TensorFlow servers")
def test_a_healthy_machine():
    code, lines = examine()
    assert failures(lines) == []
    assert code == (1 if network.can_be_private() else 0)
    assert len(lines) == 9
    text = "\n".join(lines)
    for name in ("tensorflow", *doctor.PACKAGES):
        assert f" {name} {importlib.metadata.version(name)}" in text
    for words in ("Python 3.1", "processor cores: ", "visible GPUs: ", "grpc://",
                  "ports 2222 to 2224 are free", "no proxies", "GB of memory"):  # fmt: skip
        assert words in text


@pytest.mark.usefixtures("default_ports")
@pytest.mark.slow("starts TensorFlow servers")
def test_a_port_in_use_and_proxies():
    """With dead proxies the server still answers."""
    taken = "listener = socket.create_server(('', 2223))"
    code, lines = examine(taken, http_proxy="http://127.0.0.1:9", HTTPS_PROXY="http://127.0.0.1:9")
    (line,) = failures(lines)
    assert re.search(r"\] python\S* \(process \d+\) uses port 2223 -> stop it, .*--ps_hosts", line)
    assert code == 1
    assert "[OK]   proxies (tasks unset them): http_proxy, HTTPS_PROXY" in lines
    assert any(line.startswith("[OK]   two servers start") for line in lines)


BROKEN = {
    "import sys; print('hm'); print('hm', file=sys.stderr); raise ImportError('no libc.so.9')":
        "ImportError: no libc.so.9",
    "import os, signal; os.kill(os.getpid(), signal.SIGILL)": "exit code -4",
}  # fmt: skip


@pytest.mark.slow("starts TensorFlow servers")
@pytest.mark.parametrize("code", BROKEN)
def test_tensorflow_cannot_be_imported(tmp_path, code):
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow/__init__.py").write_text(code)
    exit_code, lines = examine(PYTHONPATH=f"{tmp_path}:{ROOT}")
    first, second = failures(lines)
    assert first.startswith(f"[FAIL] TensorFlow cannot be imported: {BROKEN[code]} -> install ")
    assert first.endswith("-m pip install -r " + str(ROOT / "common/requirements.txt"))
    assert "no TensorFlow server answers" in second and "fix the import of TensorFlow" in second
    assert exit_code == 1 and len(lines) == 9


def test_a_server_that_does_not_answer(monkeypatch):
    def hangs(command, **options):
        raise subprocess.TimeoutExpired(command, 60, output=b'{"cores": 2, "gpus": 0}\nnoise\n')

    monkeypatch.setattr(subprocess, "run", hangs)
    doctor._trial.cache_clear()
    wrong, cure = problem(doctor.server)
    assert "tensorflow" in doctor.tensorflow()
    doctor._trial.cache_clear()
    assert wrong == "no TensorFlow server answers here: no answer within 60 s"
    assert "firewall" in cure and "localhost" in cure


def test_python_too_old():
    code, lines = examine("sys.version_info = (3, 9, 18, 'final', 0)")
    assert code == 1
    (line,) = lines  # and no others
    assert line == "[FAIL] Python 3.9.18; nothing else was checked -> use Python 3.10 to 3.13"


@pytest.fixture
def installed(monkeypatch):
    """name -> a fake version of an installed package, or None to hide the package."""
    real, changed = importlib.metadata.version, {}

    def version(name):
        if name in changed and changed[name] is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return changed.get(name) or real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    return changed


def test_packages(installed):
    installed |= {"papermill": None, "numpy": "1.26.4"}
    wrong, cure = problem(doctor.packages)
    assert "papermill is missing" in wrong and "matplotlib" not in wrong
    assert re.search(r"numpy is 1\.26\.4, but tests ran with numpy\S*>=2\.1", wrong)
    assert cure.startswith("install ") and "requirements.txt" in cure
    installed |= {"tensorflow": "2.22.0"}
    assert "tensorflow is 2.22.0, but" in problem(doctor.tensorflow)[0]


def test_other_versions_than_the_pins(installed, monkeypatch, tmp_path):
    project = (ROOT / "pyproject.toml").read_text()
    least = re.search(r'"numpy>=([\d.]+),', project)[1]
    installed |= {"numpy": least}
    assert f"numpy {least}," in doctor.packages()
    # A copied example has no ranges: there, only the pins count as tested.
    monkeypatch.setattr(doctor, "ROOT", tmp_path)
    assert f"numpy is {least}, but tests ran with numpy==" in problem(doctor.packages)[0]
    pins = re.findall(r"^numpy==[^\\\n]*", doctor.PINS.read_text(), re.M)  # without its hashes
    assert len(pins) > 1  # one for each Python
    for pin in map(Requirement, pins):
        installed["numpy"] = str(pin.specifier).removeprefix("==")
        if pin.marker.evaluate():
            assert doctor.packages(("numpy",)) == f"numpy {installed['numpy']}"
        else:
            assert "numpy is" in problem(doctor.packages, ("numpy",))[0]


def test_no_private_network(monkeypatch, tmp_path):
    monkeypatch.setattr(network, "can_be_private", lambda: "unshare: not permitted")
    monkeypatch.setattr(doctor, "SYSCTL", tmp_path)
    wrong, cure = problem(doctor.isolation)
    assert "anyone who reaches" in wrong and "unshare: not permitted" in wrong
    assert cure == "use a network that you trust, and start runs with --network host"
    (tmp_path / "kernel").mkdir()
    setting = tmp_path / "kernel/apparmor_restrict_unprivileged_userns"
    setting.write_text("0\n")
    assert problem(doctor.isolation)[1] == cure
    setting.write_text("1\n")
    sysctl = "sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0"
    assert problem(doctor.isolation)[1] == f"{sysctl}, or {cure}"


def test_a_private_network_without_a_slow_link(monkeypatch):
    monkeypatch.setattr(network, "can_be_private", lambda mbit=None: "no filter" if mbit else "")
    assert doctor.isolation().endswith("; --link_mbit does not work here (no filter)")
    monkeypatch.setattr(network, "can_be_private", lambda mbit=None: "")
    assert doctor.isolation().endswith("--link_mbit can slow it down")


def test_disk(monkeypatch):
    usage = types.SimpleNamespace(free=0.9e9)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    wrong, cure = problem(doctor.disk)
    assert wrong == f"0.9 GB free in {ROOT}" and cure.startswith("free some space")
    usage.free = 1.1e9
    assert doctor.disk() == f"1 GB free in {ROOT}"


def test_memory(monkeypatch, tmp_path):
    memory = types.SimpleNamespace(available=2.9e9)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    monkeypatch.setattr(doctor, "CGROUP", tmp_path)
    wrong, cure = problem(doctor.memory)
    assert wrong == "2.9 GB of memory free" and "each task takes about 1 GB" in cure
    memory.available = 8e9
    assert doctor.memory() == "8.0 GB of memory free"
    # A container may have less than the machine.
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.stat").write_text("anon 1000000000\nfile 5000000000\n")
    assert doctor.memory() == "8.0 GB of memory free"
    (tmp_path / "memory.max").write_text("3500000000\n")
    assert problem(doctor.memory)[0] == "2.5 GB of memory free"


def test_a_check_that_crashes(monkeypatch, capsys):
    def breaks():
        raise OSError("two\nlines")

    for name in ("tensorflow", "packages", "server", "ports", "isolation", "memory"):
        monkeypatch.setattr(doctor, name, lambda: "fine")
    breaks.__name__ = "disk"
    assert doctor.main() == 0
    monkeypatch.setattr(doctor, "disk", breaks)
    capsys.readouterr()
    assert doctor.main() == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("[FAIL]")] == [lines[-2]]
    assert "disk check crashed" in lines[-2] and r"OSError('two\nlines')" in lines[-2]
    assert lines[-1] == "[OK]   fine"  # later checks still run
