"""Words that more than one room says."""

ABORTED = "TensorFlow aborted a call by mistake; nothing is lost"  # in the log of the task


def counted(number: int, what: str) -> str:
    """`1 worker`, `2 workers`."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"
