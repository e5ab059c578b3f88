"""Shows a run as a page that moves, below a cell."""

import json
from pathlib import Path

import ipywidgets
from IPython.display import display

from common.page import write


def recorded(folder: Path) -> None:
    """Shows what happened in a run: its lanes move, and a click on a mark says what it is.

    Where no kernel runs, the site shows the same page, from what the output keeps of the run;
    GitHub shows a sentence.

    Args:
        folder: the results of a run that has ended, by itself or not.
    """
    run = write.read(folder, stopped=True)
    said = f"{run['title']}. {run['about']} In JupyterLab and on the site, a page that moves."
    live = ipywidgets.HTML(write.framed(run), layout={"width": "100%"})._repr_mimebundle_()
    kept = json.dumps(run, separators=(",", ":"))  # one line of the notebook's file
    display(live | {"text/plain": said}, metadata={"run": kept}, raw=True)
