"""A real Slurm with three nodes on this machine: as root, with Debian's packages.

It changes nothing outside its folder: its daemons have free ports and private mounts. There,
/etc/hosts knows the nodes, and n2 and n3 each have a private disk at `local`.
"""

import contextlib
import fcntl
import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

from watch import Unavailable, environment, eventually

from common.launch import network

NODES = ("n1", "n2", "n3")
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged", "unshare", "setpriv")
# Runs a daemon in a mount namespace; $0: its hosts file, $1: where its private disk goes, or empty.
MOUNT = """mount --bind "$0" /etc/hosts && { [ -z "$1" ] || mount -t tmpfs none "$1"; } &&
shift && exec "$@" """


def install() -> None:
    """Installs Slurm, where that is allowed; raises Unavailable, with the reason, if that fails."""
    if os.getuid() != 0:
        raise Unavailable("a Slurm cluster here needs root")
    with open(Path(tempfile.gettempdir(), f"apt-{os.getuid()}.lock"), "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one test at a time installs
        if not all(map(shutil.which, PROGRAMS)) and shutil.which("apt-get"):
            packages = ["slurm-wlm", "munge"]
            for words in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
                subprocess.run(["apt-get", "-q", *words], stdin=subprocess.DEVNULL,
                               capture_output=True)  # fmt: skip
    if not all(map(shutil.which, PROGRAMS)):
        raise Unavailable(
            "no Slurm here, and it cannot be installed (Debian: apt install slurm-wlm)"
        )
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:
        raise Unavailable("a Slurm cluster here needs mount namespaces")


class Cluster:
    """A running cluster."""

    def __init__(self, folder: Path):
        self.local = folder / "local"
        self.env = environment(SLURM_CONF=str(folder / "slurm.conf"))

    def run(self, *words, code: int = 0, **env: str) -> str:
        """Runs one of Slurm's commands; returns its output."""
        done = subprocess.run([*map(str, words)], text=True, env=self.env | env,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
        assert done.returncode == code, done.stdout
        return done.stdout.strip()

    def state(self, job: str) -> dict[str, str]:
        """What Slurm knows about a job, such as `JobState` and `ExitCode`."""
        words = self.run("scontrol", "--oneliner", "show", "job", job).split()
        return dict(word.partition("=")[::2] for word in words)

    def wait(self, job: str, usual: float) -> dict[str, str]:
        """Waits until a job and its steps have ended; returns its state."""
        ended = eventually(lambda: not self.run("squeue", "--noheader", f"--jobs={job}"), usual)
        assert ended, self.state(job)
        return self.state(job)


@contextlib.contextmanager
def running():
    """A cluster that ends with the `with` block, and with this process."""
    install()
    folder, daemons = Path(tempfile.mkdtemp(prefix="slurm-")), []
    folder.chmod(0o755)  # munged wants that
    for name in ("state", "local", *(f"spool-{node}" for node in NODES)):
        (folder / name).mkdir()
    hosts = folder / "hosts"
    hosts.write_text(f"{Path('/etc/hosts').read_text()}\n127.0.0.1 {' '.join(NODES)}\n")
    key = folder / "munge.key"
    key.touch(0o600)
    key.write_bytes(os.urandom(128))
    template = Path(__file__).with_name("slurm.conf")
    host, ports = socket.gethostname().partition(".")[0], network.free_ports(4, private=False)
    conf = template.read_text().format(host=host, folder=folder, ports=ports)
    (folder / "slurm.conf").write_text(conf)
    # Slurm gives devices to jobs without looking at what they are.
    gpus = "Name=gpu File=/dev/null\nName=gpu File=/dev/zero\n"
    (folder / "gres.conf").write_text(gpus)

    def start(*words, disk="") -> None:
        command = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount"]
        command += ["sh", "-c", MOUNT, hosts, disk, *words]
        with open(folder / f"daemon-{len(daemons)}.log", "w") as log:
            how = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
            daemons.append(subprocess.Popen([*map(str, command)], **how))

    cluster = Cluster(folder)
    own = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log",
           "seed-file": "seed"}  # fmt: skip
    try:
        start("munged", "--foreground", *[f"--{k}={folder}/munge.{v}" for k, v in own.items()])
        assert eventually((folder / "munge.socket").exists, 10)
        start("slurmctld", "-D", "-f", folder / "slurm.conf")
        for node in NODES:
            disk = "" if node == "n1" else cluster.local
            start("slurmd", "-D", "-N", node, "-f", folder / "slurm.conf", disk=disk)
        ready = ["sinfo", "--noheader", "--states=idle", "--format=%D"]
        assert eventually(
            lambda: subprocess.run(ready, env=cluster.env, capture_output=True).stdout == b"3\n", 60
        ), [path.read_text()[-2000:] for path in folder.glob("*.log")]
        yield cluster
        cluster.run("scancel", "--user=root")
        assert eventually(lambda: not cluster.run("squeue", "--noheader"), 30)
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait()
        shutil.rmtree(folder)
