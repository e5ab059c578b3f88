"""What the events of a run say: how long a mini-batch takes, the run's speed, its staleness."""

import statistics

from schemes import SCHEMES


def measured(events: list[list[dict]], scheme: str, window: int) -> dict:
    """What a simulation of the run needs, and what it should find: the median seconds of a
    mini-batch, when the workers began, speed and staleness. No half of the workers may be late."""
    took = [mini_batch(event, scheme, window) for mine in events for event in mine]
    return {"compute": round(statistics.median(took), 5),
            "starts": [round(mine[:2][-1]["time"] - events[0][:2][-1]["time"], 4)
                       for mine in events],
            "real": [round(value, 4) for value in speed_and_staleness(events)]}  # fmt: skip


def mini_batch(event: dict, scheme: str, window: int) -> float:
    """Seconds for each mini-batch of a step. In an elastic scheme, the first one begins with the
    pull: what is counted as computing begins when that has arrived."""
    after = event["compute"]
    if SCHEMES[scheme].worker != "elastic":
        return after / window
    return (after + min(event["pull"], after / max(1, window - 1))) / window


def speed_and_staleness(events: list[list[dict]]) -> tuple[float, float]:
    """Examples per second and mean staleness, without the first fifth of the events."""
    every = sorted((event for mine in events for event in mine), key=lambda event: event["time"])
    start, *rest = every[len(every) // 5 :]
    took = rest[-1]["time"] - start["time"]
    stale = statistics.mean(event["staleness"] for event in rest)
    return sum(event["examples"] for event in rest) / took, stale
