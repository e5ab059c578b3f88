"""What run.sh must know about this example beyond `DEFAULTS`; see common/told/about.py."""

from common.told.about import About

USUAL = About()


def line(worker: int, event: dict) -> str:
    """A batch of episodes, with their mean return."""
    return f"{USUAL.line(worker, event)}  return {event['return']:.0f}"


def tested(summary: dict) -> str:
    return f"{USUAL.tested(summary)} (return {summary['test_return']:.1f})"


ABOUT = About(line=line, tested=tested)
