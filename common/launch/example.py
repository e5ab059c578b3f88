"""What an example says of itself, read without running it."""

import ast
from pathlib import Path

from common import fail


def example_of(script: Path) -> tuple[dict, str]:
    """An example's `DEFAULTS` and its docstring, read without running the script."""
    tree = ast.parse(script.read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "DEFAULTS":
            try:
                defaults = ast.literal_eval(node.value)
            except ValueError:
                break
            return defaults, ast.get_docstring(tree) or ""
    fail(f"{script} has no DEFAULTS = {{...}} of literal values: copy that line from an example")
