"""What the events of a run say: how long a mini-batch takes, the run's speed, its staleness."""

import statistics

from schemes import SCHEMES


def measured(events: list[list[dict]], scheme: str, window: int) -> dict:
    """What a simulation of the run needs, and what it should find: the median seconds of a
    mini-batch, when each worker began, speed and staleness. No half of the workers may be late."""
    took = [mini_batch(event, scheme, window) for mine in events for event in mine]
    return {"compute": round(statistics.median(took), 5),
            "starts": [round(time, 4) for time in starts(events, scheme)],
            "real": [round(value, 4) for value in speed_and_staleness(events)]}  # fmt: skip


def starts(events: list[list[dict]], scheme: str) -> list[float]:
    """When each worker began, in seconds after worker 0.

    A round ends for all at the same time, so in a synchronous scheme this is the begin of the first
    step. In others it is the end of a later one, after which speed and staleness count: at first,
    TensorFlow hands out graphs, and where staleness is bounded, who falls behind stays behind.
    """
    if SCHEMES[scheme].worker == "synchronous":
        parts = "pull", "compute", "push"
        began = [first["time"] - sum(first[part] for part in parts) for first, *_ in events]
    else:
        began = [mine[min(map(len, events)) // 5]["time"] for mine in events]
    return [time - began[0] for time in began]


def mini_batch(event: dict, scheme: str, window: int) -> float:
    """Seconds for each mini-batch of a step. In an elastic scheme, the first one begins with the
    pull: what is counted as computing begins when that has arrived."""
    after = event["compute"]
    if SCHEMES[scheme].worker != "elastic":
        return after / window
    return (after + min(event["pull"], after / max(1, window - 1))) / window


def speed_and_staleness(events: list[list[dict]]) -> tuple[float, float]:
    """Examples per second and mean staleness, without the first fifth of each worker's events.

    A worker's rate is taken from one of its own events to another: one moment for all would be in
    the middle of somebody's round.
    """
    parts = [mine[len(mine) // 5 :] for mine in events]
    speed = sum(sum(event["examples"] for event in rest) / (rest[-1]["time"] - start["time"])
                for start, *rest in parts if rest)  # fmt: skip
    return speed, statistics.mean(event["staleness"] for _, *rest in parts for event in rest)
