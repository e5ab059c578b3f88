"""Measures the one client of in-graph replication: CPU time, bytes, the size of its graph.

Create `Cost(task)` before the graph, enter it with `with`, and call `cost.step()` after each step.
It writes `client.json` to the results folder and prints a line.
"""

import json
import os
import socket
import struct
import threading
import time
from pathlib import Path

import tensorflow.compat.v1 as tf

from common.record import results

SOON = 0.05  # seconds between two measurements


class Cost:
    """Measures this process from the end of its first step on: everything before is start-up.

    Includes evaluations and checkpoints. With several threads, a step is one replica's.
    """

    def __init__(self, task):
        self._task, self._lock = task, threading.Lock()
        self._began = time.process_time()
        self._steps, self._due, self._looks = 0, 0.0, []
        self._sockets: dict[str, tuple[int, int]] = {}

    def __enter__(self) -> "Cost":
        """Called when the graph is complete, apart from what `session.training` adds."""
        self._built = time.process_time() - self._began
        return self

    def step(self) -> None:
        with self._lock:
            self._steps += self._task.flags.steps_per_execution
            if time.monotonic() > self._due:
                self._due = time.monotonic() + SOON
                found = time.perf_counter(), time.process_time(), *self._bytes()
                self._looks[1:] = [(self._steps, *found)]  # the first and the last

    def _bytes(self) -> tuple[float, float]:
        """Bytes sent and received by this process's TCP sockets so far; NaN except on Linux."""
        for link in Path("/proc/self/fd").glob("*"):
            try:
                name = os.readlink(link)
                if name.startswith("socket:"):
                    with socket.socket(fileno=os.dup(int(link.name))) as found:
                        info = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                    # tcpi_bytes_acked and tcpi_bytes_received; closed sockets keep theirs
                    self._sockets[name] = struct.unpack_from("QQ", info, 120)
            except (OSError, struct.error):  # closed meanwhile, or not a TCP socket
                continue
        if not self._sockets:
            return float("nan"), float("nan")
        return tuple(map(sum, zip(*self._sockets.values())))

    def __exit__(self, *exception) -> None:
        # Do not measure here: the session has ended, with one more evaluation and checkpoint.
        if exception[0] or not self._task.is_chief or len(self._looks) < 2:
            return
        first, last = self._looks[0], self._looks[-1]
        steps, seconds, cpu, sent, received = (b - a for a, b in zip(first, last))
        graph = tf.get_default_graph().as_graph_def()
        found = {
            "replicas": self._task.flags.workers, "steps": steps,
            "steps_per_second": steps / seconds, "cpu_per_step": cpu / steps,
            "sent_per_step": sent / steps, "received_per_step": received / steps,
            "nodes": len(graph.node), "graph_bytes": graph.ByteSize(),
            "build_seconds": self._built,
        }  # fmt: skip
        self._leave({key: None if value != value else value for key, value in found.items()})

    def _leave(self, found: dict) -> None:
        folder = Path(self._task.flags.results)
        through = "an unknown number of bytes (only Linux counts them)"
        text = json.dumps(found, indent=2) + "\n"
        results.write(folder / "client.json", lambda file: file.write(text.encode()))
        if found["sent_per_step"] is not None:
            kb = (found[key] / 1e3 for key in ("sent_per_step", "received_per_step"))
            through = "{:,.1f} kB sent, {:,.1f} kB received".format(*kb)
        cpu, built = 1e3 * found["cpu_per_step"], found["build_seconds"]
        line = f"client: {cpu:.2f} ms of CPU and {through} per step; graph of {found['nodes']:,} "
        line += f"nodes, built in {built:.1f} s of CPU"
        print(f"> {line}", flush=True)  # "> ": run.sh shows it on the screen
