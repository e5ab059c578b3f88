"""Links the first use of each glossary term in a notebook to docs/GLOSSARY.md."""

import os
import re
from pathlib import Path

import navigation
import nbformat
from notebooks import ROOT

PAGE = Path("docs/GLOSSARY.md")

# Terms that most readers do not know; the others would link half of the words.
LINKED = ("AGN", "all-reduce", "asynchronous", "backup worker", "between-graph replication",
          "checkpoint", "chief", "device filter", "elastic averaging", "gate", "global parameters",
          "global step", "hook", "in-graph replication", "local parameters", "micro-batch",
          "model parallelism", "moving rate", "parameter server", "placeholder", "pull", "push",
          "resource variable", "shard", "slot", "staleness", "straggler", "synchronous", "token",
          "window")  # fmt: skip
# What no link may stand in: code, formulas, links, HTML, headings, bold or italic words.
SKIPPED = re.compile(
    r"(```.*?```|`[^`]*`|\$\$.*?\$\$|\$[^$\n]+\$"
    r"|!?\[[^\]]*\]\([^)]*\)|<[^>]+>|^#+ .*?$|\*[^*\n]+\*)",
    re.S | re.M,
)


def terms() -> list[str]:
    return re.findall(r"^### (.+)$", (ROOT / PAGE).read_text(encoding="utf-8"), re.M)


def anchor(term: str) -> str:
    return re.sub(r"[^\w -]", "", term.lower()).replace(" ", "-")


def linked(notebook: nbformat.NotebookNode, path: Path) -> nbformat.NotebookNode:
    """Returns the notebook with a link at the first use of each term, and at no other; a link on
    other words counts, too."""
    page = os.path.relpath(PAGE, path.parent)
    cells = [cell for cell in notebook.cells
             if cell.cell_type == "markdown" and not navigation.is_navigation(cell)]  # fmt: skip
    for term in LINKED:
        target = f"]({page}#{anchor(term)})"
        words, how = r"\s".join(map(re.escape, term.split(" "))), 0 if term.isupper() else re.I
        old = re.compile(rf"\[({words}s?){re.escape(target)}", how)
        for cell in cells:
            cell.source = old.sub(r"\1", cell.source)
        if any(target in cell.source for cell in cells):
            continue
        use = re.compile(rf"\b({words}s?)\b", how)
        for cell in cells:
            parts = SKIPPED.split(cell.source)
            for i in range(0, len(parts), 2):
                parts[i], found = use.subn(rf"[\1{target}", parts[i], count=1)
                if found:
                    break
            else:
                continue
            cell.source = "".join(parts)
            break
    return notebook
