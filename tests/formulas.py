"""The table of the examples: which scheme each one runs, what it derives from, and how far it may
differ. The schemes themselves are in `Many-Workers/schemes.py`, in NumPy.
"""

from dataclasses import dataclass
from pathlib import Path

from common.told.example import main_script

ROOT = Path(__file__).resolve().parents[1]


@dataclass
class Folder:
    """A row of the table.

    Attributes:
        scheme: its name in `Many-Workers/schemes.py`; None if another test compares the folder with
            NumPy.
        parent: the script it derives from; just the folder's name for its main script.
        changed: at most this many lines of code are added, and at most this many removed.
        flags: flags that make the scheme's own term visible.
        small: whether a step also makes small transfers, such as of a count that it asks for; if
            not, it makes exactly one transfer each way.
        workers: of the run that is compared with the formula; three for asynchronous schemes, and
            where two do not show all of the formula.
    """

    scheme: str | None
    parent: str | None
    changed: int
    flags: tuple[str, ...] = ()
    workers: int = 2
    small: bool = False


FOLDERS = {
    "Non-Distributed-Setup": Folder("HogWild", None, 0, workers=1),
    "Distributed-Setup": Folder("HogWild", "Non-Distributed-Setup/train.py", 15, workers=1),
    "HogWild": Folder("HogWild", "Distributed-Setup", 2, workers=3),
    "Sparse-Embeddings": Folder(None, "HogWild", 50),
    "AGN": Folder("AGN", "HogWild", 13, workers=3),
    "DOWNPOUR-Easy": Folder("DOWNPOUR-Easy", "AGN", 4, workers=3),
    "DOWNPOUR": Folder("DOWNPOUR", "DOWNPOUR-Easy", 10, workers=3),
    "Dynamic-SGD": Folder("Dynamic-SGD", "AGN", 9, workers=3),
    "AEASGD": Folder("AEASGD", "AGN", 26, workers=3),
    "AEAMSGD": Folder("AEAMSGD", "AEASGD", 12, workers=3),
    "Stale-Synchronous-Parallel": Folder("Stale-Synchronous-Parallel", "HogWild", 10, workers=3),
    "DC-ASGD": Folder("DC-ASGD", "HogWild", 15, ("--dc_lambda", "2"), workers=3),
    "Synchronous-SGD": Folder("Synchronous-SGD", "Distributed-Setup", 15, workers=3),
    "Synchronous-SGD-different-learning-rates": Folder(
        "Synchronous-SGD-different-learning-rates", "Synchronous-SGD", 7,
        ("--learning_rates", "0.5,0.1,0.3"), workers=3,
    ),
    "Sign-SGD": Folder(
        "Sign-SGD", "Synchronous-SGD", 60, ("--learning_rate", "0.1", "--sign_momentum", "0.5"),
        workers=4, small=True,
    ),
    "SAGN": Folder("SAGN", "Synchronous-SGD", 15),
    "Local-SGD": Folder("Local-SGD", "SAGN", 10),
    # Where a gradient is nearly 0, AdamW with a smaller epsilon follows its rounding.
    "DiLoCo": Folder(
        "DiLoCo", "Local-SGD", 40,
        ("--learning_rate", "0.01", "--inner_epsilon", "1e-3"), workers=3,
    ),
    "Async-DiLoCo": Folder(
        "Async-DiLoCo", "Dynamic-SGD", 58,
        ("--learning_rate", "0.1", "--inner_epsilon", "1e-2"), workers=3,
    ),
    "Multiple-GPUs-Single-Machine": Folder("HogWild", "HogWild", 15),
    "Model-Parallelism": Folder(None, "Non-Distributed-Setup/train.py", 80),
    "Your-Own": Folder(None, "HogWild", 30),
    "Train-and-Serve": Folder(None, "HogWild", 32),
    "One-Network-per-Device": Folder(None, "Non-Distributed-Setup/train.py", 62),
    "In-Graph-Replication": Folder(None, "Multiple-GPUs-Single-Machine/towers.py", 27),
    "CIFAR-10": Folder(None, "HogWild", 60),
    "Keras-Model": Folder(None, "HogWild", 30),
    "Actor-Learner": Folder(None, "HogWild", 111),
    "TensorFlow-2": Folder(None, "HogWild", 100),
}  # fmt: skip


def folders() -> list[str]:
    """Every example with several tasks."""
    return sorted(path.parent.name for path in ROOT.glob("[!.]*/worker.py"))


def of(example: str) -> Folder:
    """The row of a folder.

    Raises:
        AssertionError: if it has none; says what to do.
    """
    assert example in FOLDERS, (
        f"{example} has no formula: write the scheme in NumPy as a class in "
        "Many-Workers/schemes.py, and add the folder with its parent to FOLDERS in "
        "tests/formulas.py"
    )
    return FOLDERS[example]


def parent_of(example: str) -> Path:
    """The script that an example's main script derives from."""
    parent = ROOT / of(example).parent
    return main_script(parent) if parent.is_dir() else parent
