"""Finds, executes and cleans the notebooks of the collection."""

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
import papermill
import printed

ROOT = Path(__file__).resolve().parents[1]
SIDE_BY_SIDE = ROOT / "Basics-Tutorial" / "Multiple-Workers"  # these run at the same time
os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"  # this environment's kernel, not the user's
WIDGET = "application/vnd.jupyter.widget-view+json"
KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}


def everything() -> list[Path]:
    """Every notebook, as a path below the root, in alphabetical order."""
    found = ROOT.glob("[!.]*/**/*.ipynb")
    known = [path.relative_to(ROOT) for path in found]
    hidden = {p for p in known if any(part[0] == "." or part == "results" for part in p.parts)}
    return sorted(set(known) - hidden)


def code_hash(notebook: nbformat.NotebookNode) -> str:
    """Identifies the code of all cells, to detect outputs of other code."""
    code = "\0".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    return hashlib.sha256(code.encode()).hexdigest()[:16]


def joined(outputs: list) -> list:
    """Makes one output of consecutive lines, which the kernel may send one by one: some viewers
    show each as a paragraph of its own."""
    found: list = []
    for output in outputs:
        last = found[-1] if found else {}
        if output.output_type == "stream" == last.get("output_type") and output.name == last.name:
            last.text += output.text
        else:
            found.append(output)
    return found


def cleaned(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Returns the notebook without what differs between executions or machines."""
    language = {"name": "python", "pygments_lexer": "ipython3"}
    notebook.metadata = {"kernelspec": KERNEL, "language_info": language,
                         "executed_code": code_hash(notebook)}  # fmt: skip
    for cell in notebook.cells:
        kept = {"tags": cell.metadata.get("tags"), "jupyter": cell.metadata.get("jupyter")}
        cell.metadata = {name: value for name, value in kept.items() if value}
        if "outputs" in cell:
            cell.outputs = joined(cell.outputs)
        for output in cell.get("outputs", []):
            about = output.get("metadata", {})
            for name in set(about) - {"image/png", "run"}:  # its description; what a page shows
                del about[name]
            output.get("data", {}).pop(WIDGET, None)  # its kernel is gone; the frames stay
    return notebook


def execute(
    path: Path, target: Path, parameters: dict | None = None, limit: int = 600
) -> nbformat.NotebookNode:
    """Executes a notebook with papermill, with the kernel in the notebook's own folder.

    Raises:
        papermill.PapermillExecutionError: with the traceback of the cell that failed.
        nbclient.exceptions.CellTimeoutError: if one cell takes longer than `limit` seconds.
    """
    # papermill's own cwd would change this whole process, which may run other notebooks too.
    place = {"metadata": {"path": str(path.parent)}}
    papermill.execute_notebook(path, target, parameters, kernel_name="python3", resources=place,
                               progress_bar=False, execution_timeout=limit,
                               # By itself, one that has started processes takes 2.5 s to end.
                               shutdown_kernel="immediate")  # fmt: skip
    return nbformat.read(target, as_version=4)


def refresh(path: Path) -> None:
    """Executes a notebook and replaces it with the result."""
    target = path.with_name(f".{path.name}")  # keeps the old one if a cell fails
    try:
        notebook = printed.written(cleaned(execute(path, target)), path)
        nbformat.write(notebook, target)
        os.replace(target, path)
    finally:
        target.unlink(missing_ok=True)
    print(f"refreshed {path.relative_to(ROOT)}", flush=True)


def refresh_all(names: list[str]) -> None:
    """Refreshes the named notebooks (`AGN`, `Servers`, a path), or all if no name is given."""
    paths = [ROOT / path for path in everything()]
    if names:
        paths = [p for p in paths if {p.stem, p.parent.name, str(p.relative_to(ROOT))} & set(names)]
    together = [path for path in paths if path.parent == SIDE_BY_SIDE]
    if together:  # they wait for each other
        with ThreadPoolExecutor() as pool:
            list(pool.map(refresh, sorted(SIDE_BY_SIDE.glob("*.ipynb"))))
    for path in paths:
        if path not in together:
            refresh(path)
