"""Runs many simulations, as many at once as there are cores."""

import functools
import multiprocessing
import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import simulate
from threadpoolctl import threadpool_limits  # comes with scikit-learn


def measure(flags: dict) -> dict:
    """Simulates a run with these flags; returns its `summary.json` without the list of tasks, but
    with `dropped`: how many pushes missed their round."""
    cluster, journal = simulate.simulate(simulate.options(**flags), curve=False)
    found = journal.summary(cluster)
    return found | {"dropped": sum(journal.dropped), "tasks": None}


def start() -> None:
    """In a new process: NumPy uses one thread, since all processes together use all cores. The
    process ends with the one that started it, however that ends; Ctrl-C is for that one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threadpool_limits(1)
    parent = multiprocessing.parent_process()
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()


@functools.cache
def processes() -> ProcessPoolExecutor:
    """Started once per program. They are new processes, not copies: a notebook's kernel has
    threads, so it cannot be copied safely."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return ProcessPoolExecutor(cores, multiprocessing.get_context("spawn"), start)


def measure_all(several: list[dict]) -> list[dict]:
    """The same for several runs, in order. Meanwhile, in a notebook, a line below the cell says how
    many are done. In a script, call it under `if __name__ == "__main__"`: the new processes import
    it."""
    from common.teach import progress  # here, since the new processes do not need it

    shown, found = progress.Output("starting ..."), []
    for each in processes().map(measure, several):
        found.append(each)
        shown.replace(f"{len(found)} of {len(several)} simulations")
    shown.replace("")
    return found


def losses_by_rate(kinds: dict[str, dict], rates, seeds: int) -> dict[str, np.ndarray]:
    """The test loss at the end of each run, [rates, seeds]; infinite if it diverged.

    Args:
        kinds: the flags of each kind of run.
        rates: the learning rates to try with each kind, in ascending order.
    """
    flags = [own | {"learning_rate": rate, "seed": seed}
             for own in kinds.values() for rate in rates for seed in range(seeds)]  # fmt: skip
    losses = np.array([each["test_loss"] for each in measure_all(flags)], float)
    losses[~np.isfinite(losses)] = np.inf
    return dict(zip(kinds, losses.reshape(len(kinds), len(rates), seeds)))


def best(losses: np.ndarray) -> int:
    """The index of the rate with the smallest median loss, of `losses_by_rate`.

    Raises:
        ValueError: if it is at an end of the rates: a better one may lie beyond.
    """
    k = int(np.median(losses, axis=1).argmin())
    if k in (0, len(losses) - 1):
        raise ValueError("the best rate is at an end: try more rates")
    return k
