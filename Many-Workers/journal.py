"""Measures a simulated run. Its memory does not grow with the number of updates."""

from collections import Counter, deque

import numpy as np

from common.record.summary import versions

LOGGED = 8  # workers that have events: as many as a picture can show
RECENT = 40  # events kept of each of them
LINES = 10_000  # in each file of events or updates, about, however long the run
POINTS = 75  # evaluations at most, as in a real run


class Journal:
    """Gets every step and update.

    Args:
        flags: the command line; see `simulate.py`.
        problem: of `learning.py`.
        rounds: whether the scheme is synchronous.
        write: `write(name, line)` is called with each line of `NAME.jsonl`; see `report.py`.
        show: `show(journal, number)` is called after each update.
        curve: whether each evaluation is computed, not only that at the end. All take their
            simulated time.

    Attributes:
        time: simulated seconds until the last update.
        staleness: staleness -> number of pushes.
        steps: windows per worker.
        dropped, contributed: pushes per worker that missed their round, or went into it.
        recent: the last events of each logged worker, as in `events-worker-K.jsonl`.
        evaluations: as in `evaluations.jsonl`.
        reached: whether the test accuracy has reached `--target_accuracy`.
    """

    def __init__(self, flags, problem, rounds: bool, write, show, curve: bool = True):
        self.flags, self.problem, self.rounds, self.reached = flags, problem, rounds, False
        self.write, self.show, n = write, show, flags.workers
        self.curve = curve or flags.target_accuracy is not None
        self.time, self.evaluations, self.staleness = 0.0, [], Counter()
        self.window, self.every = getattr(flags, "window", 1), max(1, flags.steps // POINTS)
        self.steps, self.dropped, self.contributed = [0] * n, [0] * n, [0] * n
        self.computing, self.communicating, self.ended = [0.0] * n, [0.0] * n, [0.0] * n
        self.soon, self.next = 0.0, 1  # the next evaluation: when, and after how many updates
        self.pause = max(3.0, 30 / n) if flags.link_mbit else 3.0  # of worker 0's time
        self.recent = [deque(maxlen=RECENT) for _ in range(min(n, LOGGED))]
        pushes = flags.steps if rounds else flags.steps / n  # of each worker
        self.apart = {"events": round(pushes / LINES), "updates": round(flags.steps / LINES)}
        self.expected, self.cycles = 0.0, 0  # of the staleness; see summarise, "theory"
        self.before: list[tuple | None] = [None] * n  # each worker's last step

    def step(self, cluster, k: int, number: int, pulled_at: int, stale: int, told: float) -> None:
        """Worker k's push has reached the ps now: for update `number`, which may still wait for
        others, or be made already. The worker has the confirmation `told` seconds later."""
        counted, read, got = cluster.env.now, cluster.read[k], cluster.got[k]
        told_at, ends = counted + told, cluster.computed[k]
        pull, compute, push = got - cluster.asked[k], ends - got, max(0.0, told_at - ends)
        out, gap = counted - read, None
        if self.before[k]:
            counted_before, pulled_before, out_before = self.before[k]
            gap = read - counted_before
            cycle = out_before + gap
            self.expected += (pulled_at - pulled_before - 1) * out_before / cycle if cycle else 0
            self.cycles += 1
        self.before[k] = counted, pulled_at, out
        self.staleness[stale] += 1
        self.steps[k] += 1
        self.computing[k] += compute
        self.communicating[k] += pull + push
        self.ended[k] = max(told_at, ends)
        if k < LOGGED:
            line = {"time": self.ended[k], "local_step": self.steps[k] * self.window,
                    "global_step": number, "loss": self.problem.loss[k], "staleness": stale,
                    "pulled_at": pulled_at, "gap": gap, "out": out, "pull": pull,
                    "compute": compute, "push": push, "counted": counted,
                    "examples": self.window * self.problem.batch(k)}  # fmt: skip
            self.recent[k].append(line)
            if self.is_logged("events", self.steps[k]):
                self.write(f"events-worker-{k}", line)

    def drop(self, k: int) -> None:
        """Worker k's push came too late for its round."""
        self.dropped[k] += 1

    def update(self, cluster, workers: list[int]) -> None:
        """An update with the pushes of `workers` has just been made."""
        self.time, number = cluster.env.now, cluster.updates
        for k in workers:
            self.contributed[k] += 1
        if self.rounds and self.is_logged("updates", number):
            line = {"time": self.time, "global_step": number, "workers": workers}
            self.write("updates", line)
        self.show(self, number)

    def is_logged(self, what: str, number: int) -> bool:
        """Whether line `number` is written: of a long run, stretches of `RECENT` are, evenly apart,
        so that the pictures need no more memory."""
        return number // RECENT % max(1, self.apart[what]) == 0

    def is_due(self, cluster) -> bool:
        """Whether worker 0 should evaluate now: at most about `POINTS` times, for at most a quarter
        of its time and, as in a real run, with at most about a thirtieth of a limited link."""
        late = cluster.env.now >= self.soon and cluster.updates >= self.next
        return late and self.problem.size > 0

    def evaluate(
        self, w: np.ndarray, number: int, asked: float, now: float, last: bool = False
    ) -> None:
        """Evaluates w~ after `number` updates. Worker 0 asked for it, and has it now."""
        self.soon = now + self.pause * (now - asked)
        self.next = (number // self.every + 1) * self.every
        if not (self.curve or last):
            return
        found = {"time": now, **self.problem.evaluate(w), "global_step": number}
        self.evaluations.append(found)
        self.write("evaluations", found)
        target = self.flags.target_accuracy
        self.reached = target is not None and found["test_accuracy"] >= target

    def summary(self, cluster) -> dict:
        """The content of `summary.json`."""
        flags, total = self.flags, sum(self.staleness.values())
        ended = {"exit_code": 0, "restarts": 0, "restart_reasons": []}
        nothing = {"local_steps": 0, "examples": 0, "seconds": 0.0}
        tasks = [{"job": "ps", "index": k, **ended, **nothing} for k in range(flags.ps)]
        for k in range(flags.workers):
            batches, busy = self.steps[k] * self.window, self.computing[k] + self.communicating[k]
            task = {"job": "worker", "index": k, **ended, "local_steps": batches,
                    "examples": batches * self.problem.batch(k), "seconds": self.ended[k],
                    "computing": self.computing[k], "communicating": self.communicating[k],
                    "waiting": max(0.0, self.ended[k] - busy)}  # fmt: skip
            if self.rounds:
                task |= {"contributed": self.contributed[k], "dropped": self.dropped[k]}
            tasks.append(task)
        examples = sum(task["examples"] for task in tasks)
        sent = sum(link.total_bytes for link in {*cluster.down, *cluster.up})
        room = (flags.link_mbit or 0) * 1e6 / 8 * len({*cluster.down, *cluster.up}) * self.time
        last = self.evaluations[-1] if self.evaluations else {}
        return {
            "scheme": flags.scheme,
            "flags": vars(flags),
            "workers": flags.workers,
            "ps": flags.ps,
            "global_step": cluster.updates,
            "examples": examples,
            "seconds": self.time,
            "examples_per_second": examples / self.time if self.time else 0.0,
            "bytes_per_step": sent / total if total else None,
            "link_use": sent / room if room else None,
            **{name: last[name] for name in last if name.startswith("test_")},
            "staleness": {
                "mean": sum(s * count for s, count in self.staleness.items()) / max(1, total),
                "max": max(self.staleness, default=0),
                "theory": 0.0 if self.rounds else self.expected / max(1, self.cycles),
                "histogram": {str(s): self.staleness[s] for s in sorted(self.staleness)},
            },
            "tasks": tasks,
            "versions": versions(),
        }
