"""Set-up makes a .venv once, on first use; if it fails, it prints a one-line error.

Small shell scripts replace Python, uv, pip and the disk, except in the last tests.
"""

import contextlib
import hashlib
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
from conftest import ROOT, copy_example, environment, eventually, processes
from machine import seconds

pytestmark = pytest.mark.slow("tests the set-up, not a scheme")

TOOLS = "awk bash cat chmod cksum cp df dirname find mkdir rm sed sh sleep touch uname"  # no Python

# A good Python 3.12: its `venv` copies a real one without pip, with this script as `python`, and
# its pip installs a uv. The environment says what uv and pip then do: FAKE_UV, FAKE_PIP. Both note
# their arguments.
PYTHON = f"""#!/bin/sh
case "$*" in
  --version) echo "Python 3.12.1" ;;
  "-c import sys; print"*) echo Python 3.12 without venv; echo with venv ;;
  "-I -m venv "*) cp -R "$EMPTY_VENV/." "$4" && cp "$0" "$4/bin/python" ;;
  "-I -m pip install "*"--require-hashes "*/uv.txt)
    [ "$FAKE_UV" ] || exit 1
    printf '#!/bin/sh\necho "uv $*" >>"$CALLS"; eval "$FAKE_UV"' >"${{0%python}}uv"
    chmod +x "${{0%python}}uv" ;;
  "-I -m pip install "*) shift 2; echo "$*" >>"$CALLS"; eval "$FAKE_PIP" ;;
  "-m pytest "*) echo "tested by $0: $*" ;;
  *"/common/launch "*) shift; echo "launched by $0: $*$PYTHONSAFEPATH" ;;
  *) real=${{0%/*}}/real; [ -e "$real" ] || real='{sys.executable}'; exec "$real" "$@" ;;
esac
"""
WRONG = "#!/bin/sh\necho Python 3.9 without venv; echo with venv\n"
BARE = PYTHON.replace("; echo with venv", "; exit 1")  # Debian's, without python3-venv


class Machine:
    """A copy of the plumbing in a new folder, and a PATH with only what a test needs."""

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
    def called(self) -> str:
        """The installers called so far, in order: uv, pip. Each was asked for the pinned packages,
        with their hashes."""
        calls = self.calls.read_text().splitlines() if self.calls.exists() else []
        how = "(--compile-bytecode|--quiet)"
        pinned = "--require-hashes -r .*/(common|tests)/requirements.txt"
        uv = f"uv pip install {how} --python .*/.venv/bin/python {pinned}"
        for call in calls:
            assert re.fullmatch(f"{uv}|pip install --no-input (--quiet )?{pinned}", call)
        return " ".join(call.partition(" ")[0] for call in calls)

    def has(self, name: str, script: str = PYTHON) -> None:
        """Puts a program on the PATH."""
        (self.bin / name).unlink(missing_ok=True)  # do not write through a link to the real one
        (self.bin / name).write_text(script)
        (self.bin / name).chmod(0o755)

    def start(self, *flags, uv=":", pip=":", more=(), script="HogWild", **options):
        env = environment(PATH=str(self.bin), FAKE_UV=uv, FAKE_PIP=pip, CALLS=str(self.calls),
                          EMPTY_VENV=str(self.empty_venv), **dict(more))  # fmt: skip
        if "PYTHON" not in dict(more):
            del env["PYTHON"]
        command = [str(self.bin / "bash"), str(self.root / script / "run.sh"), *flags]
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
        """Checks for a one-line error with these words; nothing is launched."""
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


def test_the_first_use_creates_it_and_later_ones_keep_it(good):
    first = good.works(more={"PYTHONSAFEPATH": "1"})  # scripts import modules from their own folder
    assert f"Setting up {good.venv} with Python 3.12.1" in first.stderr
    assert "happens once" in first.stderr
    assert good.called == "uv"
    second = good.works()
    assert second.stderr == ""
    assert good.called == "uv"
    left = {path.name for path in good.root.iterdir()}
    assert left == {"common", "HogWild", ".venv"}
    assert {path.name for path in good.venv.glob(".*")} == {".stamp"}


def test_the_second_use_is_fast(good):
    good.works()

    def took() -> float:
        begun = time.perf_counter()
        good.works()
        return time.perf_counter() - begun

    assert min(took() for _ in range(5)) < seconds(0.3)


def test_no_python(machine):
    machine.fails("install Python 3.10 to 3.13", "there is no Python")
    assert not machine.venv.exists()


def test_only_a_wrong_python(machine):
    machine.has("python3", WRONG)
    # What pyenv installs for a version that it does not have:
    machine.has("python3.13", "#!/bin/sh\necho pyenv: command not found >&2; exit 127\n")
    machine.fails(
        "install Python 3.10 to 3.13", "3.13 with its venv module", "; python3 is Python 3.9"
    )
    machine.has("python3.11", BARE)
    machine.fails(
        "apt install python3-venv", "; python3.11 is Python 3.12 without venv; python3 is"
    )
    assert not machine.venv.exists()
    machine.has("python")  # a good one, under the last name tried
    machine.works()


@pytest.mark.parametrize(
    ("uv", "called"), [("", "pip"), ("echo 'cannot reach it' >&2; exit 2", "uv pip")]
)
def test_pip_replaces_a_failing_uv(good, uv, called):
    assert "uv could not install the packages; trying pip." in good.works(uv=uv).stderr
    assert good.called == called
    assert good.works().stderr == ""


REASONS = {
    "no network": (
        "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError(': "
        "Failed to establish a new connection: [Errno -3] Temporary failure in name resolution'\n"
        "ERROR: No matching distribution found for absl-py==2.5.1",
        ["cannot download the packages", "connect this machine", "proxy"],
    ),
    "full disk": (
        "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
        ["the disk is full", "make room"],
    ),
    "no such package": (
        "ERROR: No matching distribution found for tensorflow==2.21.0",
        ["cannot install the packages here", os.uname().machine, "Python 3.12.1"],
    ),
    "hashes": ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES", ["cannot install the packages"]),
}


@pytest.mark.parametrize("reason", REASONS)
def test_both_fail(good, reason):
    output, words = REASONS[reason]
    good.fails(*words, uv="exit 1", pip=f"cat >&2 <<'EOF'\n{output}\nEOF\nexit 1")
    good.works()  # the unfinished .venv did not count as complete:
    assert good.called == "uv pip uv"


def test_too_little_space_is_noticed_beforehand(good):
    line = "/dev/disk 9 9 2048000 99% /"
    good.has("df", f"#!/bin/sh\necho Filesystem\necho {line}\n")
    good.fails("too little disk space", "3.5 GB free")
    assert good.called == ""
    good.has("df", f"#!/bin/sh\necho Filesystem\necho {line.replace('2048000', '3600000')}\n")
    good.works()


def test_no_write_permission(empty_venv):
    other = {"user": 65534, "group": 65534} if os.geteuid() == 0 else {}  # root can always write
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


def begin(good, more: str, **options) -> subprocess.Popen:
    """Starts a set-up and waits until uv has begun; uv then runs `more`."""
    begun = good.root / "begun"
    process = good.start(uv=f"touch '{begun}'; {more}", **options)
    assert eventually(begun.exists, 20)
    return process


def is_made_anew(good) -> None:
    """Set-up replaces an unfinished or outdated .venv completely."""
    old, called = good.venv / "old", good.called
    old.touch()
    assert "Setting up" in good.works().stderr
    assert not old.exists() and good.called == f"{called} uv"
    assert good.works().stderr == ""


@pytest.mark.parametrize(
    "whom, number, code",
    [("run.sh", signal.SIGINT, 130), ("all", signal.SIGINT, 130), ("run.sh", signal.SIGTERM, 143)],
)
def test_interrupted(good, whom, number, code):
    process = begin(good, "sleep 1000 & wait")
    (os.killpg if whom == "all" else os.kill)(process.pid, number)
    _, errors = process.communicate(timeout=seconds(5))
    assert process.returncode == code
    assert errors.splitlines()[-1].startswith("error: the set-up was interrupted")
    assert eventually(lambda: not processes(), 2)  # neither uv nor what uv started
    is_made_anew(good)


@pytest.mark.parametrize("whom", ["run.sh", "all"])
def test_killed(good, whom):
    process = begin(good, "sleep 1000 & wait")
    (os.killpg if whom == "all" else os.kill)(process.pid, signal.SIGKILL)
    assert eventually(lambda: not processes(), 5)
    process.communicate(timeout=seconds(5))
    is_made_anew(good)


def test_outdated_or_moved_or_without_its_python(good, tmp_path):
    good.works()
    (good.root / "common/requirements.txt").write_text("numpy==2.0\n")
    is_made_anew(good)
    old, good.root = good.root, tmp_path / "elsewhere"
    old.rename(good.root)
    is_made_anew(good)
    (good.venv / "bin/python").unlink()
    (good.venv / "bin/python").symlink_to("/nowhere/python3.12")
    is_made_anew(good)
    # As if /usr/bin/python3 had been upgraded: the new one looks for packages in another folder.
    (good.venv / "bin/python").write_text(PYTHON.replace("3.12.1", "3.13.0"))
    is_made_anew(good)


@pytest.mark.parametrize("kind", ["folder", "link"])
def test_somebody_elses_venv_is_not_removed(good, kind):
    other = good.venv if kind == "folder" else good.root.parent / "other"
    (other / "bin").mkdir(parents=True)
    if kind == "link":
        (other / ".stamp").touch()
        good.venv.symlink_to(other)
    good.fails("was not made by this set-up", "remove it")
    assert (other / "bin").exists() and good.called == ""


@pytest.mark.parametrize(("code", "called"), [(0, "uv"), (1, "uv pip uv")])
def test_two_set_ups_at_once(good, code, called):
    """The second waits; then it has nothing to do, or takes over if the first failed."""
    go = good.root / "go"
    os.mkfifo(go)
    first = begin(good, f"read _ <'{go}'; exit {code}", pip="exit 1")
    second = good.start()
    assert "Another set-up is running" in second.stderr.readline()
    go.write_text("\n")
    first.communicate(timeout=seconds(20))
    assert "launched" in second.communicate(timeout=seconds(20))[0]
    assert (first.returncode, second.returncode, good.called) == (2 * code, 0, called)


def test_progress_on_a_terminal(good):
    """uv and pip draw their progress bars on the terminal."""
    reader, writer = pty.openpty()
    bars = {"uv": "[ -t 2 ] && echo uv draws >&2; exit 1", "pip": "[ -t 1 ] && echo pip draws"}
    process = good.start(**bars, stdout=writer, stderr=writer)
    os.close(writer)
    shown = b""
    with contextlib.suppress(OSError), open(reader, "rb", buffering=0) as screen:
        while block := screen.read(1000):
            shown += block
    assert process.wait(timeout=seconds(20)) == 0
    assert re.search(r"uv draws.*pip draws.*Set-up is complete", shown.decode(), re.DOTALL)


def test_the_environments_python_is_used_unchanged(good):
    good.has("mine")
    done = good.run(more={"PYTHON": "mine"})
    assert done.stdout.startswith(f"launched by {good.bin}/mine: ")
    assert done.stderr == ""
    assert not good.venv.exists() and good.called == ""
    good.has("empty", f"#!/bin/sh\nexec '{sys.executable}' -S \"$@\"\n")
    done = good.run(more={"PYTHON": "empty"})
    assert done.returncode == 2
    assert re.fullmatch(
        r"error: PYTHON=\S+ lacks numpy: install the packages of common/requirements.txt there, "
        r"or unset PYTHON\n",
        done.stderr,
    )
    done = good.run(more={"PYTHON": "nobodys"})
    assert (done.returncode, done.stderr) == (
        2,
        "error: PYTHON=nobodys is not a program that you can run: correct it, or unset PYTHON\n",
    )


@pytest.fixture
def other(tmp_path):
    """A folder with another package named `common`."""
    (tmp_path / "other/common").mkdir(parents=True)
    (tmp_path / "other/common/__init__.py").write_text("raise SystemExit('another common')")
    return str(tmp_path / "other")


@pytest.mark.parametrize("safe", ["", "1"])
def test_the_launcher_finds_its_own_common(tmp_path, other, safe):
    """For any PYTHONPATH, PYTHONSAFEPATH and current directory."""
    (tmp_path / "numpy.py").write_text("raise SystemExit('the current directory')")
    done = subprocess.run(
        ["bash", ROOT / "HogWild/run.sh", "--help"],
        env=environment(PYTHONPATH=other, PYTHONSAFEPATH=safe),
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "bash HogWild/run.sh [flags]" in done.stdout


def test_the_tasks_find_their_own_common(run, tmp_path, other):
    """With a Python that has only the packages: the set-up's .venv would find it, too."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    (site,) = (tmp_path / "venv").glob("lib/python3*/site-packages")
    (site / "packages.pth").write_text(f"{Path(pytest.__file__).parents[1]}\n")
    python = str(tmp_path / "venv" / "bin" / "python")
    finished = run("HogWild", "--workers", 1, "--steps", 20, PYTHON=python, PYTHONPATH=other)
    assert finished.summary["global_step"] == 20
    tasks = [(task["job"], task["exit_code"]) for task in finished.summary["tasks"]]
    assert tasks == [("ps", 0), ("worker", 0)]


def test_with_the_real_python_and_pip(machine, other):
    """A real venv and a real pip, with one package from a folder that has no uv."""
    machine.has("python3.12", f"#!/bin/sh\nexec '{sys.executable}' \"$@\"\n")
    (machine.root / "common/launch/launcher.py").write_text(
        "import tiny, sys\ndef main(_): print(tiny.x, sys.prefix)\n"
    )
    (machine.root / "HogWild/ps.py").write_text("import own, common; print(common.__file__)\n")
    (machine.root / "HogWild/own.py").touch()
    wheels, pins = machine.root / "wheels", machine.root / "common/requirements.txt"
    wheels.mkdir()
    local = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": wheels.as_uri(), "PIP_CONFIG_FILE": os.devnull,
             "PIP_USER": "1"}  # fmt: skip
    tiny = wheels / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(tiny, "w") as wheel:
        info = "tiny-1.0.dist-info"
        wheel.writestr("tiny.py", "x = 7")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        tag = "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        wheel.writestr(f"{info}/WHEEL", tag)
        wheel.writestr(f"{info}/RECORD", "tiny.py,,\n")

    pins.write_text(f"tiny==1.0 --hash=sha256:{hashlib.sha256(tiny.read_bytes()).hexdigest()}\n")
    done = machine.run(more=local)
    assert (done.returncode, done.stdout) == (0, f"7 {machine.venv}\n"), done.stderr
    # A task started by hand, from anywhere, finds its common/ and the modules in its own folder.
    env = environment()
    del env["PYTHONPATH"]
    for script, place in (("HogWild/ps.py", machine.root), (machine.root / "HogWild/ps.py", "/")):
        task = subprocess.run([machine.venv / "bin/python", script], cwd=place, env=env,
                              capture_output=True, text=True)  # fmt: skip
        assert task.stdout == f"{machine.root}/common/__init__.py\n", task.stderr


def test_a_copy_does_not_use_the_common_that_it_was_copied_from(tmp_path):
    """A task of it says how to start it; so does one with another collection in PYTHONPATH."""
    root = copy_example("HogWild", tmp_path / "copy", ps="import common; print(common.__file__)")
    script = root / "HogWild" / "ps.py"
    answers = {}
    for path in (ROOT, root):
        answers[path] = subprocess.run([sys.executable, script], text=True, capture_output=True,
                                       env=environment(PYTHONPATH=str(path)))  # fmt: skip
    assert (answers[ROOT].returncode, answers[ROOT].stdout) == (2, "")
    assert answers[ROOT].stderr == (
        f"error: {script} should use {root}/common, but Python finds {ROOT}/common first: start it "
        f"with PYTHONPATH={root}\n"
    )
    assert answers[root].stdout == f"{root}/common/__init__.py\n"


@pytest.fixture
def suite(good):
    """With the start of the tests."""
    (good.root / "tests").mkdir()
    for name in ("run.sh", "requirements.txt"):
        shutil.copy(ROOT / "tests" / name, good.root / "tests")
    shutil.copy(ROOT / "pyproject.toml", good.root)
    return good


def test_the_tests_add_what_only_they_need_once(suite):
    def tested(**more):
        done = suite.run("--fast", script="tests", **more)
        assert done.returncode == 0, done.stderr
        wanted = f"tested by {suite.venv}/bin/python: -m pytest -n 2 --dist worksteal --fast"
        assert done.stdout.splitlines()[-1] == wanted
        return suite.called

    assert tested() == "uv uv"  # what all need, then what the tests need
    assert tested() == "uv uv"
    with open(suite.root / "tests/requirements.txt", "a") as pins:
        pins.write("# newer\n")
    assert tested(uv="exit 1") == "uv uv uv pip"
    suite.works()
    assert suite.called == "uv uv uv pip"
    suite.calls.unlink()
    (suite.root / "common/requirements.txt").write_text("numpy==2.0\n")  # a new .venv
    assert tested() == "uv uv"


def test_the_tests_cannot_be_installed(suite):
    suite.works()
    suite.fails("cannot install the packages here", uv="exit 1", pip="exit 1", script="tests")
    suite.has("empty", f"#!/bin/sh\nexec '{sys.executable}' -S \"$@\"\n")
    done = suite.run(more={"PYTHON": "empty"}, script="tests")
    assert (done.returncode, done.stderr) == (
        2,
        "error: PYTHON=empty lacks check-jsonschema, codespell, pre-commit, pytest, pytest-xdist, "
        "ruff, zizmor: install the packages of tests/requirements.txt there, or unset PYTHON\n",
    )
