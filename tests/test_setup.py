"""Set-up makes a .venv once, at first use; if it cannot, it says why in one sentence.

Small shell scripts stand in for Python, pip and the disk, except in the last test.
"""

import contextlib
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import pytest
from conftest import ROOT, environment, eventually, processes
from machine import seconds

pytestmark = pytest.mark.slow("tests the set-up, not a scheme")

TOOLS = (
    "awk bash cat cp df dirname grep head mkdir mv rm sed sh sleep tail touch uname"  # no Python
)

# A good Python 3.12: its `venv` copies a real one without pip, with this script as its `python`.
PYTHON = f"""#!/bin/sh
case "$*" in
  --version) echo "Python 3.12.1" ;;
  "-c import sys; sys.exit(not"*) exit 0 ;;
  "-c import venv"* | "-c import pip") exit 0 ;;
  "-m venv "*) cp -R "$EMPTY_VENV/." "$3" && cp "$0" "$3/bin/python" ;;
  "-m pip install "*) echo pip >>"$CALLS"; eval "$FAKE_PIP" ;;
  *"del sys.path[0]"*) shift 2; echo "launched by $0: $*" ;;
  *) real=${{0%/*}}/real; [ -e "$real" ] || real='{sys.executable}'; exec "$real" "$@" ;;
esac
"""
WRONG = '#!/bin/sh\n[ "$1" = --version ] && echo Python 3.9.18\nexit 1\n'
# Debian's Python, without the package python3-venv.
BARE = PYTHON.replace('"-c import venv"*', '*ensurepip*) exit 1 ;;\n  "-c import venv"*')
WITHOUT_PIP = PYTHON.replace('"-c import pip") exit 0', '"-") exit 0 ;;\n  "-c import pip") exit 1')


class Machine:
    """A copy of the plumbing in a new folder, and a PATH that holds only what a test needs."""

    def __init__(self, folder: Path, empty_venv: Path):
        self.empty_venv = empty_venv
        self.root = folder / "a folder"
        self.bin = folder / "bin"
        self.calls = folder / "calls"
        shutil.copytree(ROOT / "common", self.root / "common",
                        ignore=shutil.ignore_patterns("__pycache__"))  # fmt: skip
        (self.root / "HogWild").mkdir()
        shutil.copy(ROOT / "HogWild/run.sh", self.root / "HogWild")
        self.bin.mkdir()
        for name in TOOLS.split():
            (self.bin / name).symlink_to(shutil.which(name))

    @property
    def venv(self) -> Path:
        return self.root / ".venv"

    @property
    def pips(self) -> int:
        """How often pip has been called."""
        return len(self.calls.read_text().split()) if self.calls.exists() else 0

    def has(self, name: str, script: str = PYTHON) -> None:
        """Puts a program into the PATH."""
        (self.bin / name).unlink(missing_ok=True)  # never write through a link to the real one
        (self.bin / name).write_text(script)
        (self.bin / name).chmod(0o755)

    def start(self, *flags: str, pip: str = ":", more=(), **options) -> subprocess.Popen:
        env = environment(PATH=str(self.bin), FAKE_PIP=pip, CALLS=str(self.calls),
                          EMPTY_VENV=str(self.empty_venv), **dict(more))  # fmt: skip
        if "PYTHON" not in dict(more):
            del env["PYTHON"]
        command = [str(self.bin / "bash"), str(self.root / "HogWild/run.sh"), *flags]
        return subprocess.Popen(
            command,
            env=env,
            cwd=self.root.parent,
            text=True,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            **({"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options),
        )

    def run(self, *flags: str, **more) -> subprocess.CompletedProcess:
        process = self.start(*flags, **more)
        output = process.communicate(timeout=seconds(60))
        return subprocess.CompletedProcess(process.args, process.returncode, *output)

    def works(self, **more) -> subprocess.CompletedProcess:
        done = self.run("--steps", "20", **more)
        assert done.returncode == 0, done.stderr
        wanted = f"launched by {self.venv}/bin/python: {self.root}/HogWild"
        assert done.stdout == wanted + " --steps 20\n"
        return done

    def fails(self, *words: str, **more) -> None:
        """One sentence says why, and nothing is launched."""
        done = self.run(**more)
        assert done.returncode == 2
        assert "launched" not in done.stdout
        lines = done.stderr.splitlines()
        assert [line for line in lines if line.startswith("error: ")] == lines[-1:]
        assert "not found" not in done.stderr
        for word in words:
            assert word in lines[-1]


@pytest.fixture(scope="module")
def empty_venv(tmp_path_factory):
    folder = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (folder / "bin/python").rename(folder / "bin/real")
    return folder


@pytest.fixture
def machine(tmp_path, empty_venv):
    return Machine(tmp_path, empty_venv)


@pytest.fixture
def good(machine):
    machine.has("python3.12")
    return machine


def test_first_use_makes_it_and_later_uses_keep_it(good):
    first = good.works()
    assert f"Setting up {good.venv} with Python 3.12.1" in first.stderr
    assert "done once" in first.stderr
    assert good.pips == 1
    second = good.works()
    assert second.stderr == ""
    assert good.pips == 1
    left = {path.name for path in good.root.iterdir()}
    assert left == {"common", "HogWild", ".venv"}


def test_the_second_use_is_fast(good):
    good.works()

    def took() -> float:
        begun = time.perf_counter()
        good.works()
        return time.perf_counter() - begun

    assert min(took() for _ in range(5)) < seconds(0.3)


def test_no_python(machine):
    machine.fails("no Python found", "install Python 3.10 to 3.13")
    assert not machine.venv.exists()


def test_only_a_wrong_python(machine):
    machine.has("python3", WRONG)
    # What pyenv puts there for a version that it does not have:
    machine.has(
        "python3.13", "#!/bin/sh\necho pyenv: python3.13: command not found >&2; exit 127\n"
    )
    machine.fails("3.10 to 3.13 is needed", "only Python 3.9.18")
    assert not machine.venv.exists()
    machine.has("python")  # the right one, under the last name tried
    machine.works()


def test_no_venv_module(machine):
    machine.has("python3.11", BARE)
    machine.fails("python3.11 has no venv module", "apt install python3.11-venv")
    assert not machine.venv.exists()
    machine.has("python3.10")  # another Python has it
    machine.works()


REASONS = {
    "no network": (
        "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError(': "
        "Failed to establish a new connection: [Errno -3] Temporary failure in name resolution'\n"
        "ERROR: No matching distribution found for absl-py==2.5.1",
        ["cannot be downloaded", "connect this machine to the network"],
    ),
    "proxy": (
        "ERROR: Could not install packages due to an OSError: ProxyError('Cannot connect')",
        ["cannot be downloaded", "proxy"],
    ),
    "full disk": (
        "Installing collected packages: absl-py\n"
        "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
        ["the disk is full", "make room"],
    ),
    "no such package": (
        "ERROR: Could not find a version (from versions: none)\n"
        "ERROR: No matching distribution found for tensorflow==2.21.0",
        ["no package tensorflow==2.21.0 for this system", os.uname().machine, "Python 3.12.1"],
    ),
    "anything else": ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES", ["DO NOT MATCH THE HASHES"]),
}


@pytest.mark.parametrize("reason", REASONS)
def test_pip_fails(good, reason):
    output, words = REASONS[reason]
    good.fails(*words, pip=f"cat <<'EOF'\n{output}\nEOF\nexit 1")
    good.works()  # the unfinished .venv was not taken for a complete one:
    assert good.pips == 2


def test_too_little_room_is_seen_beforehand(good):
    line = "/dev/disk 9 9 2048000 99% /"
    good.has("df", f"#!/bin/sh\necho Filesystem\necho {line}\n")
    good.fails("need 3.5 GB", "only 2000 MB", "make room")
    assert not good.venv.exists() and good.pips == 0


def test_the_disk_is_too_full_for_a_message(good):
    good.works()
    (good.root / "common/requirements.txt").write_text("numpy==1\n")
    good.has("df", "#!/bin/sh\necho Filesystem\necho /dev/disk 9 9 1024 100% /\n")
    good.fails("the disk is full", pip="exit 1")
    assert good.pips == 2


def test_no_write_permission(empty_venv):
    other = {"user": 65534, "group": 65534} if os.geteuid() == 0 else {}  # root may always write
    with contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp())
        stack.callback(shutil.rmtree, folder)
        machine = Machine(folder, empty_venv)
        machine.has("python3.12")
        for path in (folder, machine.root):
            path.chmod(0o555)
            stack.callback(path.chmod, 0o755)
        done = machine.run(**other)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: cannot write to {machine.root}: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "whom, number, code",
    [("run.sh", signal.SIGINT, 130), ("all", signal.SIGINT, 130), ("run.sh", signal.SIGTERM, 143)],
)
def test_interrupted(good, whom, number, code):
    begun = good.root / "begun"
    process = good.start(pip=f"touch '{begun}'; sleep 1000 & wait")
    assert eventually(begun.exists, 20)
    (os.killpg if whom == "all" else os.kill)(process.pid, number)
    _, errors = process.communicate(timeout=seconds(5))
    assert process.returncode == code
    assert errors.splitlines()[-1].startswith("error: the set-up was interrupted")
    assert eventually(lambda: not processes(), 2)  # neither pip nor what pip started
    half = good.venv / "half"
    half.touch()
    good.works()
    assert not half.exists() and good.pips == 2  # from scratch


@pytest.mark.parametrize("whom", ["run.sh", "all"])
def test_killed(good, whom):
    begun = good.root / "begun"
    process = good.start(
        pip=f"echo Installing collected packages; touch '{begun}'; sleep 1000 & wait"
    )
    assert eventually(begun.exists, 20)
    (os.killpg if whom == "all" else os.kill)(process.pid, signal.SIGKILL)
    assert eventually(lambda: not processes(), 5)
    process.communicate(timeout=seconds(5))
    (good.venv / "half").touch()
    good.works()  # the leftover lock file does not block it
    assert not (good.venv / "half").exists() and good.pips == 2


def test_other_requirements(good):
    good.works()
    pins = good.root / "common/requirements.txt"
    old = pins.read_text()
    (good.venv / "kept").touch()

    pins.write_text("numpy==2.0\n")
    good.fails("cannot be downloaded", pip="echo Connection refused; exit 1")
    pins.write_text(old)
    pips = good.pips
    good.works()  # nothing had been changed yet
    assert good.pips == pips

    pins.write_text("numpy==2.0\n")
    assert "Bringing" in good.works().stderr
    assert good.pips == pips + 1
    assert (good.venv / "kept").exists()
    good.works()
    assert good.pips == pips + 1


def test_a_failed_update_is_not_taken_for_the_old_state(good):
    good.works()
    pins = good.root / "common/requirements.txt"
    old = pins.read_text()
    pins.write_text("numpy==2.0\n")
    good.run(pip="echo Installing collected packages; exit 1")
    pins.write_text(old)
    good.works()
    assert good.pips == 3


def test_moved(good, tmp_path):
    good.works()
    script = good.venv / "bin/jupyter"
    script.write_text(f"#!{good.venv}/bin/python\n")
    old, good.root = good.root, tmp_path / "elsewhere"
    old.rename(good.root)
    good.works()
    assert good.pips == 2
    assert (good.venv / "bin/jupyter").read_text() == f"#!{good.venv}/bin/python\n"
    (pth,) = good.venv.glob("lib/*/site-packages/distributed-tensorflow-examples.pth")
    assert pth.read_text() == f"{good.root}\n"
    good.works()
    assert good.pips == 2


def test_its_python_is_gone(good):
    good.works()
    (good.venv / "bin/python").unlink()
    (good.venv / "bin/python").symlink_to("/nowhere/python3.12")
    good.works()
    assert good.pips == 2


def test_its_python_was_upgraded(good):
    """As when /usr/bin/python3 is upgraded: the new one looks for packages in another folder."""
    good.works()
    (good.venv / "bin/python").write_text(WITHOUT_PIP.replace("3.12.1", "3.13.0"))
    (good.venv / "old").touch()
    good.works()
    assert good.pips == 2 and not (good.venv / "old").exists()


def test_somebody_elses_venv_is_not_removed(good):
    (good.venv / "bin").mkdir(parents=True)
    (good.venv / "bin/python").write_text(WITHOUT_PIP)
    (good.venv / "bin/python").chmod(0o755)
    good.fails("was not made by this set-up", "remove it")
    assert (good.venv / "bin/python").exists() and good.pips == 0


def start_two(good, outcome: str = ""):
    """One set-up that installs, and another that has said that it waits; then pip may go on."""
    begun, go = good.root / "begun", good.root / "go"
    os.mkfifo(go)
    first = good.start(pip=f"touch '{begun}'; read _ <'{go}'{outcome}")
    assert eventually(begun.exists, 20)
    second = good.start()
    assert "Another set-up is running" in second.stderr.readline()
    go.write_text("\n")
    return first, second


def test_two_at_once(good):
    first, second = start_two(good)
    one, two = first.communicate(timeout=seconds(20)), second.communicate(timeout=seconds(20))
    assert first.returncode == second.returncode == 0
    assert "launched" in one[0] and "launched" in two[0]
    assert good.pips == 1


def test_a_waiting_set_up_takes_over_from_one_that_fails(good):
    first, second = start_two(good, "; exit 1")
    first.communicate(timeout=seconds(20))
    assert "launched" in second.communicate(timeout=seconds(20))[0]
    assert (first.returncode, second.returncode, good.pips) == (2, 0, 2)


PIP = f"""
echo 'Ignoring appnope: markers do not match your environment'
echo 'Collecting absl-py==2.5.1 (from -r requirements.txt (line 2))'
echo '  Downloading absl_py-2.5.1-py3-none-any.whl (137 kB)'
echo 'Processing /files/tensorflow-2.21.0-cp312-cp312-manylinux_2_27_x86_64.whl (from -r x)'
sleep {seconds(0.7)}
echo 'Installing collected packages: absl-py, tensorflow'
"""


def test_progress_in_lines(good):
    lines = (good.root / "common/requirements.txt").read_text().splitlines()
    pins = sum("==" in line for line in lines)
    lines = good.works(pip=PIP).stderr.splitlines()
    assert f"  downloading: 2 of {pins - 1} packages: tensorflow-2.21.0 " in lines


def test_progress_on_a_terminal(good):
    reader, writer = pty.openpty()
    process = good.start(pip=PIP + f"sleep {seconds(0.7)}", stdout=writer, stderr=writer)
    os.close(writer)
    shown = b""
    with contextlib.suppress(OSError), open(reader, "rb", buffering=0) as screen:
        while block := screen.read(1000):
            shown += block
    assert process.wait(seconds(5)) == 0
    (moving,) = [line for line in shown.decode().split("\n") if "downloading: 2 of" in line]
    steps = [text.strip() for text in moving.split("\r") if text.strip()]
    assert steps[0].endswith("packages: tensorflow-2.21.0")
    assert steps[-2].startswith("installing: ")
    assert steps[-1] == "Set-up is complete."  # overwrites the progress line
    assert max(map(len, moving.split("\r"))) < 80


def test_python_of_the_environment_is_used_as_it_is(good):
    good.has("mine")
    done = good.run(more={"PYTHON": "mine"})
    assert done.stdout.startswith(f"launched by {good.bin}/mine: ")
    assert done.stderr == ""
    assert not good.venv.exists() and good.pips == 0
    good.has("empty", f"#!/bin/sh\nexec '{sys.executable}' -S \"$@\"\n")
    done = good.run(more={"PYTHON": "empty"})
    assert done.returncode == 2
    assert re.fullmatch(
        r"error: PYTHON=\S+ lacks numpy: install common/requirements.txt there, or leave PYTHON "
        r"unset\n",
        done.stderr,
    )
    done = good.run(more={"PYTHON": "nobodys"})
    assert (done.returncode, done.stderr) == (
        2,
        "error: PYTHON=nobodys: there is no such program\n",
    )


def test_with_the_real_python_and_pip(machine):
    """No stand-ins: a real venv, and pip with one package from a folder."""
    machine.has("python3.12", f"#!/bin/sh\nexec '{sys.executable}' \"$@\"\n")
    (machine.root / "common/requirements.txt").write_text("tiny==1.0\n")
    (machine.root / "common/launch/launcher.py").write_text(
        "import tiny, sys\ndef main(_): print(tiny.x, sys.prefix)\n"
    )
    wheels = machine.root / "wheels"
    wheels.mkdir()
    local = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": wheels.as_uri(), "PIP_CONFIG_FILE": os.devnull,
             "PIP_USER": "1"}  # fmt: skip

    failed = machine.run(more=local)
    assert failed.returncode == 2
    assert "error: set-up failed because there is no package tiny==1.0" in failed.stderr

    with zipfile.ZipFile(wheels / "tiny-1.0-py3-none-any.whl", "w") as wheel:
        info = "tiny-1.0.dist-info"
        wheel.writestr("tiny.py", "x = 7")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        tag = "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        wheel.writestr(f"{info}/WHEEL", tag)
        wheel.writestr(f"{info}/RECORD", "tiny.py,,\n")
    done = machine.run(more=local)
    assert (done.returncode, done.stdout) == (0, f"7 {machine.venv}\n"), done.stderr
    # A task that is started by hand, in any folder, finds common/.
    command = [machine.venv / "bin/python", "-c", "import common; print(common.__file__)"]
    env = {name: value for name, value in environment().items() if name != "PYTHONPATH"}
    found = subprocess.run(command, cwd="/", env=env, capture_output=True, text=True)
    assert found.stdout == f"{machine.root}/common/__init__.py\n", found.stderr
