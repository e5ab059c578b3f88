"""Replays a real asynchronous run in the simulation, in the order that its events recorded."""

from cluster import Cluster


class Recorded(Cluster):
    """A cluster whose clock counts updates: update q happens at time q, and a pull that sees q
    updates at q + 1/2.

    Args:
        events: of each worker of the real run, with `pulled_at` and `global_step`.
        others: the arguments of `Cluster`.
    """

    def __init__(self, events: list[list[dict]], *others):
        super().__init__(*others)
        steps = [[(e["pulled_at"] + 0.5, e["global_step"]) for e in mine] for mine in events]
        self.steps, self.number = [iter(mine) for mine in steps], [0] * len(events)

    def ask(self, k):
        at, self.number[k] = next(self.steps[k], (float("inf"), 0))
        return self.wait(at - self.env.now)

    def evaluate(self):
        self.journal.evaluate(self.w, self.updates, self.env.now, self.env.now)
        yield self.wait(0)

    def travel(self, links):
        yield self.wait(0)

    def computing(self, k, begun=None):
        return self.wait(0)

    def serve(self, k, seconds):
        return self.wait(self.number[k] - self.env.now)
