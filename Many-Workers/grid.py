"""Runs many simulations, as many at once as there are cores."""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

import simulate
from threadpoolctl import threadpool_limits  # comes with scikit-learn


def measure(flags: dict) -> dict:
    """Simulates a run with these flags; returns its `summary.json`, with the number of `dropped`
    pushes in place of the list of tasks."""
    cluster, journal = simulate.simulate(simulate.options(**flags))
    found = journal.summary(cluster)
    return found | {"dropped": sum(journal.dropped), "tasks": None}


def one_thread() -> None:
    """In a new process: NumPy uses one thread, since all processes together use all cores."""
    threadpool_limits(1)


def measure_all(several: list[dict]) -> list[dict]:
    """The same for several runs, in order."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    # New processes: a notebook's kernel has threads, so it cannot be copied safely.
    with ProcessPoolExecutor(cores, multiprocessing.get_context("spawn"), one_thread) as pool:
        return list(pool.map(measure, several))
