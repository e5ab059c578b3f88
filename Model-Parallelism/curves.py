"""What curves.png shows of this example; see common/pictures/curves.py."""

from collections import defaultdict
from pathlib import Path

from common.pictures.curves import Curves
from common.record import results


def computing(folder: Path) -> dict[int, list[tuple[float, float]]]:
    """When each worker computed its part of the steps, from the clocks that watch.py wrote."""
    found = defaultdict(list)
    for step in results.Tail(folder / "clocks.jsonl").read():
        for _, worker, _, begin, end in step:
            found[worker].append((begin, end))
    return found


CURVES = Curves(computing=computing)
