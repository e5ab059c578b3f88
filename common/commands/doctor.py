"""Checks this machine and says how to fix any problem: `python -m common.commands.doctor`.

Every check prints one line, `[OK]   what there is` or `[FAIL] what is wrong -> how to fix it`.
"""

from __future__ import annotations  # an older Python must get as far as saying that it is too old

import contextlib
import functools
import importlib.metadata
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

RIGHT = (3, 10) <= sys.version_info[:2] <= (3, 13)
ROOT = Path(__file__).resolve().parents[2]
PINS = ROOT / "common" / "requirements.txt"
PACKAGES = ("numpy", "scikit-learn", "matplotlib", "rich", "tensorboard", "jupyter", "nbconvert",
            "papermill")  # fmt: skip
PROXIES = ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy")
CGROUP, SYSCTL = Path("/sys/fs/cgroup"), Path("/proc/sys")
INSTALL = f"install the tested versions: {sys.executable} -m pip install -r {PINS}"
# Linux settings that can forbid private networks: a value that does, and one that does not.
FORBIDDING = {
    "kernel/apparmor_restrict_unprivileged_userns": ("1", "0"),  # Ubuntu 24.04
    "user/max_user_namespaces": ("0", "10000"),
}


class Problem(Exception):
    """Holds what is wrong and how to fix it, a short sentence each."""


def python() -> str:
    found = "Python {}.{}.{}".format(*sys.version_info)
    if not RIGHT:
        raise Problem(f"{found}; nothing else was checked", "use Python 3.10 to 3.13")
    return found


def _tested(name: str):
    """The tested versions of a package: pyproject.toml's range, or else the pin."""
    from packaging.requirements import Requirement  # late: the doctor says if it is missing

    project = ROOT / "pyproject.toml"  # missing if an example was copied elsewhere
    ranges = re.findall(rf'"({name}[<>=].*?)"', project.read_text()) if project.exists() else []
    pins = re.findall(rf"^{name}==[^\\\n]*", PINS.read_text(), re.MULTILINE)
    wanted = map(Requirement, ranges or pins)
    return next(one.specifier for one in wanted if not one.marker or one.marker.evaluate())


def packages(names: tuple[str, ...] = PACKAGES) -> str:
    found, wrong = [], []
    for name in names:
        try:
            version = importlib.metadata.version(name)
            found.append(f"{name} {version}")
            if not _tested(name).contains(version):
                wrong.append(f"{name} is {version}, but tests ran with {name}{_tested(name)}")
        except importlib.metadata.PackageNotFoundError:
            wrong.append(f"{name} is missing")
    if wrong:
        raise Problem("; ".join(wrong), INSTALL)
    return ", ".join(found)


def _network():
    from common.launch import network  # late: a Python that is too old cannot import it

    return network


def try_tensorflow() -> None:
    """Prints JSON for each thing that works; starts two servers, since one uses no network."""
    private = _network().choose("auto", lambda warning: None) == "private"
    from common.cluster import cores, tf  # late: it starts threads and unsets the proxies

    gpus = len(tf.config.list_physical_devices("GPU"))
    print(json.dumps({"cores": cores(), "gpus": gpus}), flush=True)
    ps, worker = ([f"localhost:{port}"] for port in _network().free_ports(2, private))
    servers = [tf.train.Server({"ps": ps, "worker": worker}, job, 0) for job in ("ps", "worker")]
    with tf.Session(servers[1].target) as session, tf.device("/job:ps/task:0"):
        print(json.dumps({"answer": float(session.run(tf.constant(3.0) + 4.0))}), flush=True)
    os._exit(0)  # a server cannot be shut down


@functools.lru_cache
def _trial() -> dict:
    """What `try_tensorflow` prints in a separate process; `end` is how that process ended."""
    command = [sys.executable, "-c", "from common.commands import doctor; doctor.try_tensorflow()"]
    try:
        child = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=60)
        said, noise, end = child.stdout, child.stderr.decode(), f"exit code {child.returncode}"
    except subprocess.TimeoutExpired as error:
        said, noise, end = error.stdout or b"", "", "no answer within 60 s"
    facts = {"end": next(filter(str.strip, reversed(noise.splitlines())), end)}
    for line in said.splitlines():
        facts |= json.loads(line) if line.startswith(b"{") else {}
    return facts


def tensorflow() -> str:
    text, facts = packages(("tensorflow",)), _trial()
    if "cores" not in facts:
        raise Problem(f"TensorFlow cannot be imported: {facts['end']}", INSTALL)
    return "{0}; processor cores: {cores}, visible GPUs: {gpus}".format(text, **facts)


def server() -> str:
    facts, cure = _trial(), "fix the import of TensorFlow first"
    if facts.get("answer") == 7:
        return "two servers start, and a session on one computes on the other through grpc://"
    if "cores" in facts:
        cure = "make sure that localhost is 127.0.0.1 and that no firewall blocks it"
    raise Problem(f"no TensorFlow server answers here: {facts['end']}", cure)


def _holder(port: int) -> str:
    with contextlib.suppress(Exception):  # some systems tell only root, others tell nobody
        import psutil  # late: the doctor says if it is missing

        pids = {c.laddr.port: c.pid for c in psutil.net_connections("tcp") if c.status == "LISTEN"}
        return f"{psutil.Process(pids[port]).name()} (process {pids[port]})"
    return "another program"


def ports() -> str:
    for port in (2222, 2223, 2224):  # of a ps and two workers started by hand
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as TensorFlow does
            try:
                probe.bind(("", port))
            except OSError:
                cure = "stop it, or start tasks with other --ps_hosts and --worker_hosts"
                raise Problem(f"{_holder(port)} uses port {port}", cure) from None
    other = _network().free_ports(1, private=False)[0]
    return f"ports 2222 to 2224 are free, and so are others ({other})"


def proxies() -> str:
    names = [name for lower in PROXIES for name in (lower, lower.upper()) if os.environ.get(name)]
    return f"proxies (tasks unset them): {', '.join(names)}" if names else "no proxies are set"


def isolation() -> str:
    if not (why := _network().can_be_private()):
        slow = _network().can_be_private(100)
        link = f"does not work here ({slow})" if slow else "can slow it down"
        return f"runs get a private network, which nobody else can reach; --link_mbit {link}"
    cures = [
        f"sudo sysctl {name.replace('/', '.')}={good}"
        for name, (bad, good) in FORBIDDING.items()
        if (SYSCTL / name).is_file() and (SYSCTL / name).read_text().strip() == bad
    ]
    cures.append("use a network that you trust, and start runs with --network host")
    risk = "anyone who reaches a run's servers on any interface can run code and read files as you"
    raise Problem(f"this system allows no private networks ({why}): {risk}", ", or ".join(cures))


def disk() -> str:
    free = shutil.disk_usage(ROOT).free / 1e9
    if free < 1:
        raise Problem(f"{free:.1f} GB free in {ROOT}", "free some space: results need up to 1 GB")
    return f"{free:.0f} GB free in {ROOT}"


def memory() -> str:
    import psutil  # late: the doctor says if it is missing

    free = psutil.virtual_memory().available
    with contextlib.suppress(OSError, ValueError, AttributeError):  # without a limit, it says "max"
        used = re.search(r"^anon (\d+)$", (CGROUP / "memory.stat").read_text(), re.MULTILINE)
        free = min(free, int((CGROUP / "memory.max").read_text()) - int(used[1]))
    text = f"{free / 1e9:.1f} GB of memory free"
    if free < 3e9:
        raise Problem(text, "close other programs: each task takes about 1 GB, and a run has three")
    return text


def main() -> int:
    """Runs all checks; returns the exit code: 0 if nothing failed, else 1."""
    checks = (python, tensorflow, packages, server, ports, proxies, isolation, disk, memory)
    failed = False
    for check in checks if RIGHT else [python]:
        try:
            line = f"[OK]   {check()}"
        except Problem as problem:
            line = "[FAIL] {} -> {}".format(*problem.args)
        except Exception as error:
            line = f"[FAIL] the {check.__name__} check crashed: {error!r} -> {INSTALL}"
        print(" ".join(line.splitlines()), flush=True)
        failed |= line.startswith("[FAIL]")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
