"""Opens the page of a run, which may still train: `--open`."""

import os
import sys
import time
import webbrowser
from pathlib import Path

from common.page import write
from common.record import results

EVERY = 5.0  # seconds; the page looks for news as often


class Shown:
    """The page of one run.

    Args:
        folder: its results.
        wanted: `--open`; if not, this does nothing.
    """

    def __init__(self, folder: Path, wanted: bool):
        self._folder, self._wanted = folder, wanted
        self._next, self._open = 0.0, False

    def note(self, say) -> None:
        """Writes the page now and then, from the first step on. The first time it is opened, and
        `say(sentence)` is called."""
        if not self._wanted or time.monotonic() < self._next:
            return
        events = self._folder.glob("events-worker-*.jsonl")
        if any(path.stat().st_size for path in events):
            self.write(say)
            self._next = time.monotonic() + EVERY

    def write(self, say) -> None:
        """The same, at once."""
        if not self._wanted:
            return
        page = write.write(self._folder)
        if not self._open:
            self._open = True
            say(f"open {results.shown(page)}")
            show(page)


def show(page: Path) -> None:
    """Opens a file in the user's browser; only where there is a screen, since elsewhere a browser
    for terminals may come up."""
    screen = sys.platform == "darwin" or os.environ.keys() & {"DISPLAY", "WAYLAND_DISPLAY"}
    if screen:
        webbrowser.open(page.resolve().as_uri())
