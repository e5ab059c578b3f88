"""What a notebook shows while an example runs: one output that changes until the run has ended."""

from pathlib import Path

import numpy as np
from IPython import get_ipython
from IPython.display import display

from common.record import results

BARS = "▁▂▃▄▅▆▇█"


class Output:
    """A text below the cell that later texts replace."""

    def __init__(self, text: str):
        shown = {"text/plain": text}
        self._handle = display(shown, raw=True, display_id=True) if get_ipython() else None

    def replace(self, text: str) -> None:
        if self._handle:
            self._handle.update({"text/plain": text}, raw=True)

    def end(self, text: str) -> None:
        """Replaces it for good; outside of a notebook, prints the text."""
        self.replace(text) if self._handle else print(text)


class Progress:
    """Reads from a results folder how far a run is."""

    def __init__(self, folder: Path):
        self._folder, self._tails, self._seen = folder, {}, []

    def line(self) -> str:
        """The newest step and its loss, and the loss so far as a row of bars."""
        for path in self._folder.glob("events-worker-*.jsonl"):
            tail = self._tails.setdefault(path, results.Tail(path))
            self._seen += [(event["global_step"], event["loss"]) for event in tail.read()]
        if not self._seen:
            return "starting ..."
        step, loss = max(self._seen)
        return f"step {step:,}  loss {loss:.4g}  {bars([loss for _, loss in sorted(self._seen)])}"


def bars(values: list[float], width: int = 40) -> str:
    """Draws values as at most `width` bars, from 0 to the largest mean of a bar's share. NaN counts
    as 0, and infinity as a large number."""
    finite = np.clip(np.nan_to_num(values), 0, 1e100)  # their means stay finite, too
    parts = np.array_split(finite, min(width, len(values)))
    means = np.array([part.mean() for part in parts])
    scaled = means / (max(means.max(), 1e-12)) * (len(BARS) - 1)
    return "".join(BARS[round(each)] for each in np.clip(scaled, 0, len(BARS) - 1))
