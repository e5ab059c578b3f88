"""The results folder of a run: a new one, or that of an earlier run to continue."""

import fcntl
import json
import os
import shutil
import time
from pathlib import Path

from common import fail
from common.record import results


def _lock(path: Path) -> None:
    """Locks a folder, without a lock file, until this process ends; fails if another run has it."""
    try:
        fcntl.flock(os.open(path, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        fail(f"another run is using {path}: wait until it ends, or use another folder")
    except OSError:  # the file system has no locks
        pass


class Folder:
    """The `--results` folder, locked against other runs until this process ends."""

    def __init__(self, options, scheme: str):
        """Creates the `--results` and `--checkpoint_dir` folders of a run of the example `scheme`.

        Raises:
            SystemExit: with a one-line error, if one of them is not writable or is in use, or if
                the folder holds results but no checkpoint to continue from, or another scheme's.
        """
        options.checkpoint_dir = options.checkpoint_dir or f"{options.results}/checkpoints"
        self.path, checkpoints = Path(options.results), Path(options.checkpoint_dir)
        files = [path.name for path in self.path.glob("*") if not path.is_dir()]
        goes_on = any(checkpoints.glob("*.index")) and "launches.jsonl" in files
        if files and not goes_on:
            fail(
                f"--results {self.path} already holds {min(files)}, but no run of run.sh with a "
                "checkpoint to continue from: use another folder"
            )
        for launch in results.Tail(self.path / "launches.jsonl").read()[-1:] if goes_on else ():
            if launch["scheme"] != scheme:
                fail(
                    f"--results {self.path} already holds a run of {launch['scheme']}, not of "
                    f"{scheme}: use another folder"
                )
        try:
            results.create(self.path / "logs")
            results.create(checkpoints, "--checkpoint_dir")
            for path in dict.fromkeys([self.path.resolve(), checkpoints.resolve()]):
                _lock(path)
        except SystemExit:
            self.discard()
            raise
        for path in self.path.glob("*.jsonl"):
            results.append(path).close()
        with open(self.path / "launches.jsonl", "a", encoding="utf-8") as file:
            launch = {"time": time.time(), "scheme": scheme, "flags": vars(options)}
            file.write(json.dumps(launch) + "\n")
        self._earlier = self._written()
        # The screen skips what was there before.
        self.sizes = {path: path.stat().st_size for path in self.path.rglob("*.*")}

    def _written(self) -> int | None:
        path = self.path / "parameters.npz"
        return path.stat().st_mtime_ns if path.exists() else None

    def are_written(self) -> bool:
        """Whether this run has written `parameters.npz`, its last file: then all work is done."""
        return self._written() != self._earlier

    def discard(self, sentence: str = "") -> None:
        """Removes the folders that this process created, unless they hold a step's events, or the
        sentence refers the user to a log."""
        events = self.path.glob("events-worker-*.jsonl")
        if " log" not in sentence and not any(path.stat().st_size for path in events):
            for folder in results.made:
                shutil.rmtree(folder, ignore_errors=True)
