"""What run.sh must know about this example beyond `DEFAULTS`; see common/told/about.py."""

from common.told.about import About


def title(options, text: str) -> str:
    """What a replica is called."""
    return text.replace("worker", "thread") if options.mode == "threads" else text


ABOUT = About(title=title)
