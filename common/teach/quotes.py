"""Quotes the scripts in READMEs and notebooks, so that what they show is what runs."""

import ast
import difflib
import io
import tokenize
from pathlib import Path


def code(path: Path) -> list[str]:
    """A script's lines without comments, the module docstring or blank lines."""
    source = path.read_text(encoding="utf-8")
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column].rstrip()
    first = ast.parse(source).body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        lines[first.lineno - 1 : first.end_lineno] = []
    return [line for line in lines if line.strip()]


def diff(a: Path, b: Path, a_name: str, b_name: str) -> str:
    """The unified diff of two scripts' code as a Markdown block."""
    changes = difflib.unified_diff(code(a), code(b), a_name, b_name, n=0, lineterm="")
    return "```diff\n" + "\n".join(line for line in changes if line[:2] != "@@") + "\n```"


def lines(path: Path, start: str, end: str = "") -> str:
    """Part of a Python file, as a Markdown block.

    Args:
        path: the file.
        start: what the part's first line begins with, ignoring indentation.
        end: what the first line after the part begins with; default: a blank line.

    Raises:
        ValueError: unless exactly one line begins with `start`, and a later one with `end`.
    """
    text = path.read_text(encoding="utf-8").splitlines()
    firsts = [i for i, line in enumerate(text) if line.strip().startswith(start)]
    if len(firsts) != 1:
        raise ValueError(f"{len(firsts)} lines of {path.name}, not exactly 1, start with {start!r}")
    for last in range(firsts[0] + 1, len(text) + 1):
        if last == len(text) and not end:
            break
        if last == len(text):
            raise ValueError(f"no line of {path.name} after {start!r} begins with {end!r}")
        line = text[last].strip()
        if line.startswith(end) if end else not line:
            break
    return "```python\n" + "\n".join(text[firsts[0] : last]).rstrip() + "\n```"
