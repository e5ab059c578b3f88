"""Words for numbers."""


def counted(number: int, what: str) -> str:
    """`1 worker`, `2 workers`."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"
