"""The links to the neighbours at the head and at the foot of each notebook, in reading order."""

import os
import re
import textwrap
from pathlib import Path

import nbformat
from notebooks import ROOT

TAG = "navigation"
TUTORIAL = Path("Basics-Tutorial")


def is_navigation(cell) -> bool:
    return TAG in cell.metadata.get("tags", [])


def order() -> list[Path]:
    """The notebooks in the order of the tutorial's README."""
    text = (ROOT / TUTORIAL / "README.md").read_text(encoding="utf-8")
    text = text.partition("## Reading order")[2].partition("\n## ")[0]
    named = [Path(os.path.normpath(TUTORIAL / target))
             for target in re.findall(r"\]\((\S+?\.ipynb)\)", text)]  # fmt: skip
    return list(dict.fromkeys(named))


def title(path: Path) -> str:
    """A notebook's first heading."""
    cells = nbformat.read(ROOT / path, as_version=4).cells
    return re.search(r"^# (.+)$", cells[0].source, re.M)[1]


def links(path: Path) -> str:
    """`Previous: ... | Contents | Next: ...`, for one notebook."""
    every = order()
    at = every.index(path)

    def link(what: str, there: Path, text: str) -> str:
        return f"{what}[{text}]({os.path.relpath(there, path.parent)})"

    parts = [link("", TUTORIAL / "README.md", "Contents"),
             link("", Path("docs/GLOSSARY.md"), "Glossary")]  # fmt: skip
    if at:
        parts.insert(0, link("Previous: ", every[at - 1], title(every[at - 1])))
    if at + 1 < len(every):
        parts.append(link("Next: ", every[at + 1], title(every[at + 1])))
    return " | ".join(parts)


def linked(notebook: nbformat.NotebookNode, path: Path) -> nbformat.NotebookNode:
    """Returns the notebook with links below its title and at its end."""
    cells = [cell for cell in notebook.cells if not is_navigation(cell)]
    head, foot = (nbformat.v4.new_markdown_cell(links(path), metadata={"tags": [TAG]}, id=name)
                  for name in ("navigation-head", "navigation-foot"))  # fmt: skip
    notebook.cells = [cells[0], head, *cells[1:], foot]
    return notebook


REMEMBER = re.compile(r"^> \*\*To remember:\*\* (.*(?:\n> \S.*)*)", re.M)


def remembered(path: Path) -> str:
    """The number to remember from a notebook, in its sentence.

    Raises:
        ValueError: if the notebook has not exactly one such sentence.
    """
    cells = nbformat.read(ROOT / path, as_version=4).cells
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    found = REMEMBER.findall(text)
    if len(found) != 1:
        raise ValueError(f"{path} has {len(found)} lines '> **To remember:** ...' instead of one")
    return re.sub(r"<!--.*?-->", "", " ".join(found[0].replace("\n> ", " ").split()))


def numbers(words: str) -> str:
    """A table of the number to remember from each notebook under a heading of the tutorial."""
    text = (ROOT / TUTORIAL / "README.md").read_text(encoding="utf-8")
    part = text.partition(f"### {words}\n")[2].partition("\n#")[0]
    rows = re.findall(r"^\| \d+ \| \[(.+?)\]\((\S+?\.ipynb)\)", part, re.M)
    if not rows:
        raise ValueError(f"the tutorial has no notebooks under '### {words}'")
    every = [f"| [{name}]({target}) | {remembered(Path(os.path.normpath(TUTORIAL / target)))} |"
             for name, target in rows]  # fmt: skip
    return "\n".join(["| notebook | to remember |", "|---|---|", *every])


ENTRY = re.compile(r"^- \[([^\]]+)\]\(([^)#\s]+\.ipynb)#([^)\s]+)\)[^\[]*?(?=\n- |\n\n|\Z)", re.M)


def named(text: str) -> str:
    """Returns the tutorial's index of questions, each with the notebook and the heading that answer
    it, for readers whose viewer ignores anchors."""

    def entry(match: re.Match) -> str:
        question, target, place = match.groups()
        cells = nbformat.read(ROOT / TUTORIAL / target, as_version=4).cells
        text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
        titles = [re.sub(r"[*`]", "", title) for title in re.findall(r"^#+ (.*)$", text, re.M)]
        found = [title for title in titles if title.strip().replace(" ", "-") == place]
        if not found:
            raise ValueError(f"{target} has no heading #{place}: {titles}")
        line = (
            f"[{' '.join(question.split())}]({target}#{place}): {Path(target).stem}, *{found[0]}*"
        )
        return "- " + textwrap.fill(line, 104, subsequent_indent="  ", break_long_words=False,
                                    break_on_hyphens=False)  # fmt: skip

    return ENTRY.sub(entry, text)
