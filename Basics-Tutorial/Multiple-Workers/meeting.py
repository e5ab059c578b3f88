"""How the three notebooks find each other and show what they are waiting for.

The first notebook chooses a free address for each role and writes all three to a file in a
temporary folder named after the user. Each notebook locks its role's file while its kernel runs;
the system releases the lock when the process ends. So the next notebook recognises the addresses of
a dead run and replaces them.
"""

import atexit
import contextlib
import fcntl
import getpass
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import tensorflow.compat.v1 as tf
from IPython.display import Markdown, display

from common.gates import Gate
from common.teach import notebook
from common.told import addresses

ROLES = {  # role -> its notebook
    "ps": "Parameter-Server.ipynb",
    "worker-1": "Worker-1.ipynb",
    "worker-2": "Worker-2.ipynb",
}
_held: dict = {}  # role -> the open lock file


def folder() -> Path:
    """The meeting place, private to this user."""
    path = Path(tempfile.gettempdir()) / f"multiple-workers-{getpass.getuser()}"
    path.mkdir(mode=0o700, exist_ok=True)
    if path.stat().st_uid != os.getuid():
        raise PermissionError(f"{path} belongs to somebody else")
    return path


@contextlib.contextmanager
def _alone():
    """Lets one notebook at a time read and write the meeting place."""
    with open(folder() / "mutex", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _locked(role: str):
    """The role's lock file, locked; None if another process holds the lock."""
    file = open(folder() / f"{role}.lock", "w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    return file


def is_running(role: str) -> bool:
    """Whether a running kernel holds the role."""
    with _alone():
        return _is_locked(role)


def _is_locked(role: str) -> bool:
    file = None if role in _held else _locked(role)
    if file:
        file.close()
    return file is None


def meet(role: str) -> dict[str, list[str]]:
    """Takes the role and returns the cluster: job -> `host:port` of its tasks."""
    if role in _held:  # this cell runs again
        return json.loads((folder() / "cluster.json").read_text())
    notebook.warn_once()
    with _alone():
        lock = _locked(role)
        if lock is None:
            raise RuntimeError(f"{ROLES[role]} is already running in another kernel")
        file = folder() / "cluster.json"
        if not any(_is_locked(other) for other in ROLES if other != role) or not file.exists():
            ps, *workers = notebook.free_addresses(3)  # we are first, or the last run is dead
            file.write_text(json.dumps({"ps": [ps], "worker": workers}))
        _held[role] = lock
        atexit.register(lambda: role in _held and leave(role))  # if the kernel is shut down
        return json.loads(file.read_text())


def leave(role: str) -> None:
    """Releases the role; the last notebook to leave clears the meeting place."""
    with _alone():
        _held.pop(role).close()
        (folder() / f"{role}.lock").unlink(missing_ok=True)
        if not any(_is_locked(other) for other in ROLES):
            for file in folder().iterdir():
                file.unlink()
            folder().rmdir()


def wait(
    condition: Callable[[], bool],
    role: str,
    section: int,
    patience: float,
    pause: float = 0.1,
    verbs: tuple[str, str] = ("finish", "finished"),
) -> None:
    """Returns once `condition()` holds; until then, shows what to do, and where.

    Args:
        condition: polled.
        role: the role of the notebook that this one waits for.
        section: the section that the other notebook must finish.
        patience: in seconds.
        pause: seconds between two polls, if `condition` itself does not block.
        verbs: what it must do with the section.

    Raises:
        TimeoutError: after `patience` seconds.
    """
    line = display(Markdown("..."), display_id=True)
    name, begun = ROLES[role], time.monotonic()
    while not condition():
        do = "run its cells" if is_running(role) else "open it, and run its cells"
        text = f"waiting for {name} to {verbs[0]} section {section}: {do}"
        if time.monotonic() - begun > patience:
            raise TimeoutError(f"gave up {text}")
        line.update(Markdown(f"*{text} ...*"))
        time.sleep(pause)
    line.update(Markdown(f"*{name} has {verbs[1]} its section {section}.*"))


def wait_for_ps(cluster: dict[str, list[str]], patience: float) -> None:
    """Returns once the parameter server answers."""
    wait(lambda: addresses.answers(cluster["ps"][0]), "ps", 1, patience)


class Sections:
    """The sections that a worker has finished, as gates on the ps that all notebooks see."""

    def __init__(self, role: str, count: int = 8):
        self._role = role
        self._gates = [Gate(f"{role}/{section}") for section in range(count + 1)]
        self._begun = [Gate(f"{role}/{section}/begun") for section in range(count + 1)]

    def finished(self, session: tf.Session, section: int) -> None:
        """Called in the worker's notebook: opens the section's gate."""
        self._gates[section].open(session)

    def wait(self, session: tf.Session, section: int, patience: float) -> None:
        """Called in another notebook: returns once the worker has finished the section."""
        gate = self._gates[section]
        wait(lambda: gate.opens(session, 0.5), self._role, section, patience, pause=0)

    def begin_with(
        self, other: "Sections", session: tf.Session, section: int, patience: float
    ) -> None:
        """Called in both notebooks: returns once both have begun the section."""
        self._begun[section].open(session)
        gate, verbs = other._begun[section], ("begin", "begun")
        wait(lambda: gate.opens(session, 0.5), other._role, section, patience, 0, verbs)
