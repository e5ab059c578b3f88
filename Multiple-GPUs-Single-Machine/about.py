"""What run.sh must know about this example beyond `DEFAULTS`; see common/told/about.py."""

from common.flags import Flag
from common.told import converters as to
from common.told import gpus
from common.told.about import About

SHARE = Flag(to.SHARE, None, "F", "share of a GPU's memory per process (default: all it needs)")


def title(options, text: str) -> str:
    """What a replica is called, and whether it has a GPU."""
    if options.mode == "towers":
        text = text.replace("worker", "tower")
    return text if gpus.count() else f"{text} (no GPU found: using the CPU)"


ABOUT = About(flags={"memory_fraction": SHARE}, title=title)
