"""What a worker does, as a process in virtual time: each `yield` lets time pass.

Compare them with the `worker.py` of HogWild, AEASGD and Synchronous-SGD.
"""

from schemes import AEASGD, SynchronousSGD


def asynchronous(cluster, k):
    """Pulls, computes and pushes. Nobody waits for anybody."""
    while True:
        w, pulled_at = yield from cluster.pull(k)
        yield cluster.compute(k)  # the time that T mini-batches take
        a = cluster.scheme.push(k, w)
        yield from cluster.push(k, a, w, pulled_at)


def elastic(cluster, k):
    """The same, but the push depends only on w and w~, so it does not wait for the local steps."""
    while True:
        center, pulled_at = yield from cluster.pull(k)
        local_steps = cluster.compute(k)
        e = cluster.scheme.push(k, center)
        yield from cluster.push(k, e, center, pulled_at)
        yield local_steps


def synchronous(cluster, k):
    """Waits for a token, the number of updates so far; then pulls, computes and pushes."""
    while True:
        token = yield from cluster.token(k)
        w, _ = yield from cluster.pull(k)
        yield cluster.compute(k)
        a = cluster.scheme.push(k, w)
        yield from cluster.push_to_round(k, a, token)


def of(scheme):
    """The process of a scheme's workers."""
    if isinstance(scheme, SynchronousSGD):
        return synchronous
    return elastic if isinstance(scheme, AEASGD) else asynchronous
