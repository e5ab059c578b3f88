"""Hosts on this machine: network namespaces, joined by a bridge, each with an ssh server."""

import contextlib
import fcntl
import ipaddress
import json
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from watch import Unavailable, environment

from common.launch import link

POLICY = Path("/usr/sbin/policy-rc.d")  # Debian: keeps a new package from starting its service
CONFIG = """
HostKey {where}/key
AuthorizedKeysFile {where}/key.pub
PidFile none
PermitRootLogin prohibit-password
UsePAM no
UseDNS no
StrictModes no
SetEnv {env}
"""
# sshd needs /run/sshd. The host's temporary folder is its own disk, which no other host sees.
START = """mount -t tmpfs none /run && mkdir -m 755 /run/sshd && mount -t tmpfs none {disk} &&
exec {sshd} -D -e -f {where}/sshd_config"""


def _call(*words, check: bool = True) -> str:
    done = subprocess.run([str(word) for word in words], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True)  # fmt: skip
    if check and done.returncode:
        raise Unavailable(f"{' '.join(map(str, words))}: {done.stderr.strip()}")
    return done.stdout


def _sshd() -> str:
    """The server's path. It is installed, but not started, if that is allowed."""

    def found():
        return shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")

    with open(Path(tempfile.gettempdir(), f"apt-{os.getuid()}.lock"), "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one test at a time installs
        if not found() and shutil.which("apt-get"):
            ours = not POLICY.exists()
            try:
                if ours:
                    POLICY.write_text("#!/bin/sh\nexit 101\n")
                    POLICY.chmod(0o755)
                install = ("install", "-y", "-q", "--no-install-recommends", "openssh-server")
                for words in (("update", "-q"), install):
                    _call("apt-get", *words, check=False)
                if shutil.which("systemctl"):  # nor at the next boot
                    _call("systemctl", "disable", "ssh.service", "ssh.socket", check=False)
            finally:
                if ours:
                    POLICY.unlink(missing_ok=True)
    if not found():
        raise Unavailable("no sshd here (Debian: apt install openssh-server)")
    return found()


def _free_network() -> ipaddress.IPv4Network:
    """Addresses that this machine has no route to, except by default."""
    routes = json.loads(_call("ip", "-4", "-j", "route"))
    used = [ipaddress.ip_network(route["dst"]) for route in routes if route["dst"] != "default"]
    for _ in range(1000):
        found = ipaddress.ip_network(f"10.{random.randrange(1, 255)}.{random.randrange(255)}.0/24")
        if not any(found.overlaps(other) for other in used):
            return found
    raise Unavailable("this machine has routes to all of 10.0.0.0/8")


class Hosts:
    """Some hosts.

    Attributes:
        names: as in `--hosts`.
        ssh: the command that knows these names, for `--ssh`.
        addresses: name -> its address.
    """

    def __init__(self, where: Path, names: tuple[str, ...]):
        tag = uuid.uuid4().hex[:6]
        self.where, self.names = where, names
        self.addresses, self.servers = {}, {}
        self.bridge, self.spaces = f"dtf{tag}", {name: f"dtf{tag}{name}" for name in names}
        self.ssh = f"ssh -F {where}/ssh_config"

    def start(self, mbit: float | None) -> None:
        sshd, network = _sshd(), _free_network()
        self.where.mkdir(parents=True, exist_ok=True)
        _call("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.where / "key")
        _call("ip", "link", "add", self.bridge, "type", "bridge")
        _call("ip", "address", "add", f"{network[254]}/24", "dev", self.bridge)
        _call("ip", "link", "set", self.bridge, "up")
        config = f"Host *\nUserKnownHostsFile {self.where}/known\nStrictHostKeyChecking no\n"
        config += f"IdentityFile {self.where}/key\nIdentitiesOnly yes\nUser root\n"
        for k, name in enumerate(self.names):
            self.addresses[name] = str(network[k + 1])
            config += f"Host {name}\nHostName {self.addresses[name]}\n"
            self._join(self.spaces[name], self.addresses[name], mbit)
            self.disk(name).mkdir(parents=True)
            self._serve(name, sshd)
        (self.where / "ssh_config").write_text(config)
        for name in self.names:
            self._await(name)

    def _join(self, space: str, address: str, mbit: float | None) -> None:
        port = space  # the host's end of its cable is eth0, the bridge's has the host's name
        _call("ip", "netns", "add", space)
        _call("ip", "-n", space, "link", "set", "lo", "up")
        _call("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", space)
        _call("ip", "link", "set", port, "master", self.bridge, "up")
        _call("ip", "-n", space, "address", "add", f"{address}/24", "dev", "eth0")
        _call("ip", "-n", space, "link", "set", "eth0", "up")
        if mbit:  # as in common/launch/link.py, but each direction has its own
            for name, value in link.TCP.items():
                file = link.SYSCTL / name
                how = f"test ! -e {file} || echo {value} > {file}"
                _call("ip", "netns", "exec", space, "sh", "-c", how)
            bucket = link.bucket(mbit)
            how = ["rate", f"{8 * bucket['rate']}bit", "burst", bucket["burst"],
                   "limit", bucket["limit"]]  # fmt: skip
            for end in (
                ["-n", space, "qdisc", "add", "dev", "eth0"],
                ["qdisc", "add", "dev", port],
            ):
                _call("tc", *end, "root", "tbf", *how)

    def _serve(self, name: str, sshd: str) -> None:
        env = environment(TMPDIR=str(self.disk(name)))
        kept = [key for key in env if key in ("TMPDIR", "PYTHON") or key.startswith("DISTRIBUTED")]
        where = self.disk(name).parent
        text = CONFIG.format(where=self.where, env=" ".join(f'"{k}={env[k]}"' for k in kept))
        (where / "sshd_config").write_text(text)
        script = START.format(where=where, disk=self.disk(name), sshd=sshd)
        with open(where / "log", "w") as log:
            self.servers[name] = subprocess.Popen(
                ["ip", "netns", "exec", self.spaces[name], "sh", "-c", script],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def _await(self, name: str) -> None:
        end = time.monotonic() + 60
        while subprocess.run([*self.ssh.split(), name, "true"], capture_output=True).returncode:
            if self.servers[name].poll() is not None or time.monotonic() > end:
                log = self.disk(name).parent / "log"
                raise Unavailable(f"sshd does not answer: {log.read_text().strip()}")
            time.sleep(0.1)

    def disk(self, name: str) -> Path:
        """The host's temporary folder, by its name there. `files` says what is in it."""
        return self.where / name / "disk"

    def files(self, name: str) -> list[str]:
        """What the host's temporary folder holds."""
        return os.listdir(f"/proc/{self.servers[name].pid}/root{self.disk(name)}")

    def processes(self, name: str) -> set[int]:
        """All processes on the host, except its ssh server."""
        found = _call("ip", "netns", "pids", self.spaces[name], check=False).split()
        return {int(pid) for pid in found} - {self.servers[name].pid}

    def listening(self, name: str) -> set[int]:
        """The ports of the host where a server listens."""
        lines = _call("ip", "netns", "exec", self.spaces[name], "ss", "-Htln").splitlines()
        return {int(line.split()[3].rpartition(":")[2]) for line in lines}

    @contextlib.contextmanager
    def cut_off(self, name: str) -> Iterator[None]:
        """In the `with` block, the host's cable carries nothing."""
        _call("ip", "link", "set", self.spaces[name], "down")
        try:
            yield
        finally:
            _call("ip", "link", "set", self.spaces[name], "up")

    def stop(self) -> None:
        for name, space in self.spaces.items():
            if server := self.servers.get(name):
                server.kill()
                server.wait()
            for pid in _call("ip", "netns", "pids", space, check=False).split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            _call("ip", "netns", "delete", space, check=False)
            _call("ip", "link", "delete", space, check=False)
        _call("ip", "link", "delete", self.bridge, check=False)


@contextlib.contextmanager
def started(
    where: Path, names: tuple[str, ...] = ("a", "b", "c"), mbit: float | None = None
) -> Iterator[Hosts]:
    """Starts hosts, and removes all but their files in the end.

    Args:
        where: a folder for keys, settings and logs.
        names: short, since they become part of a network device's name.
        mbit: each host's link carries that many Mbit/s in each direction.

    Raises:
        Unavailable: says what is missing.
    """
    if os.getuid() or not all(map(shutil.which, ("ip", "tc", "ssh", "ssh-keygen"))):
        raise Unavailable("needs root, ip and tc (iproute2), and ssh (openssh-client)")
    hosts = Hosts(where.resolve(), names)
    try:
        hosts.start(mbit)
        yield hosts
    finally:
        hosts.stop()
