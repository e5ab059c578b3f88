"""What a worker does, as a process in virtual time: each `yield` lets time pass.

Compare them with the `worker.py` of HogWild, AEASGD and Synchronous-SGD.
"""


def asynchronous(cluster, k):
    """Pulls, computes and pushes. Nobody waits, unless the scheme says who `may_begin` a step."""
    while True:
        w, pulled_at = yield from cluster.pull(k)
        yield cluster.computing(k)  # the time that T mini-batches take
        a = cluster.scheme.contribution(k, w)
        yield from cluster.push(k, a, w, pulled_at)


def elastic(cluster, k):
    """The same, but the first gradient does not depend on the pull, nor the push on the local
    steps: it depends only on w and w~. So neither waits for the other."""
    while True:
        begun = cluster.env.now
        center, pulled_at = yield from cluster.pull(k)
        local_steps = cluster.computing(k, begun)
        e = cluster.scheme.contribution(k, center)
        yield from cluster.push(k, e, center, pulled_at)
        yield local_steps


def synchronous(cluster, k):
    """Asks for w~, which the ps send once there is a token, the number of updates so far; then
    computes and pushes."""
    while True:
        token = yield from cluster.token(k)
        w, _ = yield from cluster.fetch(k)
        yield cluster.computing(k)
        a = cluster.scheme.contribution(k, w)
        yield from cluster.push_to_round(k, a, token)
