"""What curves.png shows of this example; see common/pictures/curves.py."""

from common.pictures import plots
from common.pictures.curves import Curves


def learning(axes, events: list[list[dict]]) -> None:
    """Draws the returns of each actor's episodes over updates."""
    plots.learning(axes, events, what="return")


def tested(summary: dict) -> str:
    return f"test return {summary['test_return']:.0f}"


CURVES = Curves(learning=learning, tested=tested)
