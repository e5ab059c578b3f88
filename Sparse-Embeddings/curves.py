"""What curves.png shows of this example; see common/pictures/curves.py."""

from common.pictures import palette, plots
from common.pictures.curves import Curves


def apart(axes, summary: dict, events: list[list[dict]]) -> None:
    """Draws how stale the parameters are, all together, and each row of the table."""
    every = [event for mine in events for event in mine if "rows" in event]
    if not every:  # all of the table travels, or none
        plots.staleness(axes, summary["staleness"])
        return
    whole = sum(event["staleness"] for event in every) / len(every)
    row = sum(e["row_staleness"] for e in every) / sum(e["rows"] for e in every)
    bars = axes.barh([0, 1], [whole, row], height=0.5, color=palette.PS)
    axes.bar_label(bars, [f"{value:.3g}" for value in (whole, row)], padding=4)
    axes.set_yticks([0, 1], ["all\nparameters", "a row"])
    axes.set(title="How stale are the updates?", xlabel="updates by others since the pull",
             ylim=(1.6, -0.6), xlim=(0, 1.2 * max(whole, row, 1e-9)))  # fmt: skip
    axes.grid(False, axis="y")


CURVES = Curves(apart=apart)
