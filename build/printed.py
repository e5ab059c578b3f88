"""Numbers in the prose of a notebook that stand beside an output, written from it.

In a Markdown cell, a number before a mark is what the notebook printed where the mark says:

    A call takes **0.41**<!-- printed "one call: # ms" --> ms.

`#` stands for the number; the other words stand in the notebook's text outputs, in what it
displayed as Markdown, or in a picture's description, with any white space between them; or in what
`measure/answers.py` has printed for its exercises.
"""

import json
import re
from pathlib import Path

import nbformat

ROOT = Path(__file__).parents[1]

NUMBER = r"[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?"
MARK = re.compile(rf'(?P<number>{NUMBER})(?P<rest>\**<!-- printed "(?P<words>[^"]*)" -->)')


def answers(path) -> str:
    """What was printed for the answers to the exercises of the notebook at `path`."""
    found = json.loads((ROOT / "measure" / "answers.json").read_text(encoding="utf-8"))
    return "\n".join(found.get(str(Path(ROOT, path).relative_to(ROOT)), []))


def outputs(notebook: nbformat.NotebookNode) -> str:
    """All text that the cells printed, displayed, or described pictures with."""
    found = []
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            displayed = data.get("text/markdown", data.get("text/plain", ""))
            found += [output.get("text", ""), displayed]
    return "\n".join(found)


def value(words: str, text: str) -> str:
    """The number at `#` of the words, as printed.

    Raises:
        ValueError: if the text does not have the words, or has them with several numbers.
    """
    if words.count("#") != 1:
        raise ValueError(f'printed "{words}": put one # where the number stands.')
    before, after = (r"\s+".join(map(re.escape, re.split(r"\s+", part)))
                     for part in words.split("#"))  # fmt: skip
    ahead = "" if before else r"(?<![\d.,])"
    behind = "" if after else r"(?![\d]|[.,]\d)"
    found = set(re.findall(f"{ahead}{before}({NUMBER}){behind}{after}", text))
    if len(found) != 1:
        what = f"{len(found)} numbers" if found else "no number"
        raise ValueError(f'printed "{words}": the outputs have {what} there.')
    return found.pop()


def written(notebook: nbformat.NotebookNode, path) -> nbformat.NotebookNode:
    """Returns the notebook at `path` with each marked number as it was printed.

    Raises:
        ValueError: as `value`, or if a mark has no number before it.
    """
    text = f"{outputs(notebook)}\n{answers(path)}"
    for cell in notebook.cells:
        if cell.cell_type == "markdown" and "<!-- printed" in cell.source:
            if len(MARK.findall(cell.source)) != cell.source.count("<!-- printed"):
                raise ValueError(f"{path}: a mark without a number before it: {cell.source[:200]}")
            try:
                cell.source = MARK.sub(lambda m: value(m["words"], text) + m["rest"], cell.source)
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from None
    return notebook
