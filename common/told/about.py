"""What an example says about itself beyond `DEFAULTS`: the `about.py` in its folder, if it has one.

It says `ABOUT = About(...)`, and is read before a task starts, by `run.sh`, by each task script and
by `collect`: so it imports neither TensorFlow nor anything else that loads slowly. Pictures of its
own are in another file, `curves.py`: see `common/pictures/curves.py`.
"""

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from common import fail
from common.record import metric, trace


def _line(worker: int, event: dict) -> str:
    step, loss, staleness = (event[key] for key in ("global_step", "loss", "staleness"))
    return trace.line(worker, step, loss, staleness)


class About(NamedTuple):
    """What an example may say; what it leaves out is as in most examples.

    Attributes:
        flags: name -> `common.flags.Flag`: how to check flags that only this example has. As
            everywhere, it has the flags that its `DEFAULTS` name.
        downloads: `--data` -> what `run.sh` downloads for it before it starts the tasks, as in
            `common.datasets.download.SOURCES`.
        title: `title(options, text)` returns the first line on the screen, made from the usual
            one, such as "2 workers, 1 ps".
        line: `line(worker, event)` returns how the screen tells a step; "": not at all, since the
            tasks print lines of their own, which begin with `> `.
        tested: `tested(summary)` returns what the last line on the screen says about the test.
    """

    flags: Mapping = {}
    downloads: Mapping = {}
    title: Callable[[object, str], str] = lambda options, text: text
    line: Callable[[int, dict], str] = _line
    tested: Callable[[dict], str] = metric.text


def read(folder: Path) -> About:
    """The `ABOUT` of the example in the folder."""
    return declared(folder / "about.py", "ABOUT", About())


def declared(path: Path, name: str, default):
    """The object `name` in the Python file at `path`, which is of the type of `default`; `default`,
    if there is no such file."""
    if not path.is_file():
        return default
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kind = type(default)
    found = getattr(module, name, None)
    if not isinstance(found, kind):
        fail(f"{path} must say {name} = {kind.__name__}(...): see {kind.__module__}")
    return found
