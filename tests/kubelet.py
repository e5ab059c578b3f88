"""Starts a pod's container on this machine as the kubelet does: with runc, from its manifest.

The container gets the command, arguments and environment of the manifest and the Dockerfile, the
user, the read-only root file system, no capabilities, the limits of memory and processor time, and
only its volumes to write to. Each pod has a network namespace with its own address; the namespaces
meet at a bridge. A pod's names are known once it has started, in place of the cluster's DNS.
"""

import fcntl
import importlib
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from machine import seconds
from watch import MARK, ROOT

# What the image has from its base: this machine's, and the Python that runs the tests.
SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/etc", sys.base_prefix)
PYTHON = "/opt/venv"  # there, since a volume may hide where it is here
DOCKERFILE = (ROOT / "Several-Machines" / "Dockerfile").read_text()
FILES = ("hosts", "resolv.conf")  # of /etc
NEEDED = Path(__file__).with_name("requirements-kubernetes.txt")


def _done(*command) -> bool:
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True).returncode == 0


def install(programs: tuple[str, ...] = (), modules: tuple[str, ...] = ()) -> None:
    """Installs Debian's programs and the modules of requirements-kubernetes.txt where they are
    missing. Skips the test, with the reason, if that fails."""

    def missing() -> list[str]:
        found = [name for name in programs if not shutil.which(name)]
        return found + [name for name in modules if importlib.util.find_spec(name) is None]

    with open(Path(tempfile.gettempdir(), f"apt-{os.getuid()}.lock"), "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one test at a time installs
        if {*programs} & {*missing()} and os.getuid() == 0 and shutil.which("apt-get"):
            packages = [{"ip": "iproute2"}.get(name, name) for name in programs]
            _done("apt-get", "update", "-q")
            _done("apt-get", "install", "-y", "-q", "--no-install-recommends", *packages)
        if {*modules} & {*missing()}:
            _done(sys.executable, "-m", "pip", "install", "-q", "-r", NEEDED)
            importlib.invalidate_caches()
        if missing():
            pytest.skip(f"{' and '.join(missing())} cannot be installed here")


def _line(word: str) -> str:
    return re.findall(rf"^{word} (.*)$", DOCKERFILE, re.M)[-1]


def expanded(words: list[str], env: dict[str, str]) -> list[str]:
    """Replaces `$(NAME)` if it is in the environment, and `$$` by `$`, as Kubernetes does."""

    def replaced(match):
        return "$" if match[0] == "$$" else env.get(match[1], match[0])

    return [re.sub(r"\$\$|\$\(([^)]*)\)", replaced, word) for word in words]


class Node:
    """A network and a volume for pods. As a context manager, it leaves nothing behind."""

    def __init__(self, where: Path):
        self.where, self.volume = where, where / "volume"
        self.hub, self.numbers, self.pods = f"dtfk{os.getpid()}", itertools.count(1), {}
        self.volume.mkdir()
        os.chown(self.volume, 0, 1000)  # as for an fsGroup
        self.volume.chmod(0o2775)
        for name in FILES:
            (where / name).touch()

    def __enter__(self):
        """Raises `subprocess.CalledProcessError` if this machine allows no network namespaces."""
        self.ip("netns", "add", self.hub)
        try:
            self.ip("-n", self.hub, "link", "add", "br0", "type", "bridge")
            self.ip("-n", self.hub, "link", "set", "br0", "up")
        except subprocess.CalledProcessError:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error):
        for pod in self.pods.values():
            pod.delete()
        self.ip("netns", "delete", self.hub)

    @staticmethod
    def ip(*words) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    def start(self, spec: dict, names: str, env: dict[str, str] | None = None) -> "Pod":
        """Starts the pod of a manifest. A new pod with the names of an earlier one replaces it, at
        another address."""
        if names in self.pods:
            self.pods[names].delete()
        hostname = names.split()[0].partition(".")[0]
        pod = self.pods[names] = Pod(self, next(self.numbers), spec, hostname, env or {})
        lines = [f"{pod.address} {names}\n" for names, pod in self.pods.items()]
        (self.where / "hosts").write_text("127.0.0.1 localhost\n" + "".join(lines))
        pod.run()
        return pod


class Pod:
    """A running container and its network namespace."""

    def __init__(self, node: Node, number: int, spec: dict, hostname: str, env: dict[str, str]):
        self.node, self.number, self.address = node, number, f"10.0.0.{number}"
        self.process = None
        self.id, self.bundle = f"{node.hub}p{number}", node.where / f"pod-{number}"
        self.output = self.bundle / "log"
        (self.bundle / "rootfs").mkdir(parents=True)
        (self.bundle / "tmp").mkdir()
        (self.bundle / "tmp").chmod(0o1777)
        config = json.dumps(self.config(spec, hostname, env))
        (self.bundle / "config.json").write_text(config)

    def config(self, spec: dict, hostname: str, env: dict[str, str]) -> dict:
        """What the kubelet asks of runc for the pod's container."""
        (container,) = spec["containers"]
        safe, safe_pod = container["securityContext"], spec["securityContext"]
        assert safe["capabilities"] == {"drop": ["ALL"]} and safe_pod["runAsNonRoot"]
        env = dict(word.split("=", 1) for word in [*_line("ENV").split(), MARK]) | env
        env["PATH"] = f"{PYTHON}/bin:/usr/local/bin:/usr/bin:/bin"
        command = container.get("command", json.loads(_line("ENTRYPOINT")))
        sources = {"results": self.node.volume, "tmp": self.bundle / "tmp"}
        mounts = [(path, path, "ro") for path in dict.fromkeys(SYSTEM) if os.path.exists(path)]
        mounts += [(sys.prefix, PYTHON, "ro"), (ROOT, _line("WORKDIR"), "ro")]
        mounts += [(self.node.where / name, f"/etc/{name}", "ro") for name in FILES]
        mounts += [(sources[m["name"]], m["mountPath"], "rw") for m in container["volumeMounts"]]
        namespaces = [{"type": kind} for kind in ("pid", "mount", "ipc", "uts")]
        limits = container["resources"]["limits"]
        assert re.fullmatch(r"\d+Gi", limits["memory"])
        return {
            "ociVersion": "1.0.2",
            "hostname": hostname,
            "root": {"path": "rootfs", "readonly": safe["readOnlyRootFilesystem"]},
            "process": {
                "args": expanded([*command, *container["args"]], env),
                "env": [f"{name}={value}" for name, value in env.items()],
                "cwd": _line("WORKDIR"),
                "user": {"uid": safe_pod["runAsUser"], "gid": safe_pod["runAsGroup"],
                         "additionalGids": [safe_pod["fsGroup"]]},
                "capabilities": {},
                "noNewPrivileges": not safe["allowPrivilegeEscalation"],
            },
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc"},
                {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
                *({"destination": str(to), "source": str(here), "type": "bind",
                   "options": ["rbind", how]} for here, to, how in mounts),
            ],
            "linux": {
                "namespaces": [*namespaces, {"type": "network", "path": f"/run/netns/{self.id}"}],
                "resources": {
                    "memory": {"limit": int(limits["memory"][:-2]) << 30},
                    "cpu": {"period": 100_000, "quota": int(100_000 * float(limits["cpu"]))},
                },
            },
        }  # fmt: skip

    def run(self) -> None:
        self.node.ip("netns", "add", self.id)
        self.node.ip("-n", self.id, "link", "add", "eth0", "type", "veth", "peer", "name",
                f"p{self.number}", "netns", self.node.hub)  # fmt: skip
        self.node.ip("-n", self.node.hub, "link", "set", f"p{self.number}", "master", "br0", "up")
        self.node.ip("-n", self.id, "address", "add", f"{self.address}/24", "dev", "eth0")
        for device in ("eth0", "lo"):
            self.node.ip("-n", self.id, "link", "set", device, "up")
        with open(self.output, "wb") as log:
            self.process = subprocess.Popen(
                ["runc", "run", "--bundle", self.bundle, self.id],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def kill(self, signal: str) -> None:
        """Sends a signal to the container's process 1."""
        subprocess.run(["runc", "kill", self.id, signal], check=True, capture_output=True)

    def wait(self, usual: float) -> int:
        """The exit code that Kubernetes would see."""
        return self.process.wait(seconds(usual))

    def delete(self) -> None:
        subprocess.run(["runc", "delete", "--force", self.id], capture_output=True)
        if self.process:
            self.process.wait(seconds(30))
        subprocess.run(["ip", "netns", "delete", self.id], capture_output=True)
        shutil.rmtree(self.bundle / "tmp")
