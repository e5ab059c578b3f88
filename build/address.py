"""Writes the collection's own address into the notebooks: on Colab, they get the rest from there.

.venv/bin/python build/address.py https://github.com/OWNER/NAME
"""

import re
import sys

import nbformat
import notebooks

CLONE = re.compile(r"(?<=git clone --depth 1 )\S+(?= all)")


def read() -> str | None:
    """The address in the notebooks; None if it has not been written."""
    path = notebooks.ROOT / notebooks.everything()[0]
    found = CLONE.search(path.read_text(encoding="utf-8"))[0]
    return None if found == "ADDRESS" else found


def write(new: str) -> None:
    """Replaces it. What has been run with the old one counts as run: outputs do not contain it."""
    for path in notebooks.everything():
        notebook = nbformat.read(notebooks.ROOT / path, as_version=4)
        fresh = notebook.metadata["executed_code"] == notebooks.code_hash(notebook)
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.source = CLONE.sub(lambda _: new, cell.source)
        if fresh:
            notebook.metadata["executed_code"] = notebooks.code_hash(notebook)
        nbformat.write(notebook, notebooks.ROOT / path)


if __name__ == "__main__":
    if len(sys.argv) != 2 or not re.fullmatch(r"https://\S+", sys.argv[1]):
        sys.exit(__doc__)
    write(sys.argv[1])
