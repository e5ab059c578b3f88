"""Misspelt, damaged or impossible input ends with a one-line error and exit code 2.

`python tests/bad_input.py` tries all cases and prints a table: the input, what `run.sh` says, its
exit code and what it left behind. It ends with 1 if any row is not as it should be.
"""

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[1]


class Bad(NamedTuple):
    """The input, typed in a folder that `prepare` has filled, and words of the error."""

    example: str
    flags: str
    words: tuple[str, ...]


DIFFERENT = "Synchronous-SGD-different-learning-rates"
GPUS = "Multiple-GPUs-Single-Machine"
NOT_UTF8 = os.fsdecode(b"dir-\xff")

MISTAKES = [
    Bad(example, flags, tuple(words))
    for example, flags, *words in [
        # The words on the command line
        ("HogWild", "--nonsense 3", "unknown argument --nonsense", "--help"),
        (
            "HogWild",
            "--work 3",
            "unknown argument --work",
        ),  # an abbreviation could change its meaning
        ("HogWild", "surplus", "unknown argument surplus"),
        ("HogWild", "--window 3", "unknown argument --window"),
        ("HogWild", "--steps", "--steps", "expected one argument"),
        # Numbers
        ("AGN", "--window 0", "--window", "1 or more", "'0'"),
        ("AGN", "--window 9007199254740991", "--window", "below 2^31", "'9007199254740991'"),
        ("HogWild", "--workers 0", "--workers", "1 or more", "'0'"),
        ("HogWild", "--steps x", "--steps", "a whole number", "'x'"),
        ("HogWild", "--steps -1", "--steps", "1 or more", "'-1'"),
        ("HogWild", "--steps 1.5", "--steps", "a whole number", "'1.5'"),
        ("HogWild", "--batch_size -3", "--batch_size", "0 or more", "'-3'"),
        ("HogWild", "--learning_rate 0", "--learning_rate", "above 0", "'0'"),
        ("HogWild", "--learning_rate nan", "--learning_rate", "above 0", "'nan'"),
        ("HogWild", "--learning_rate inf", "--learning_rate", "'inf'"),
        ("HogWild", "--seed 99999999999999999999", "--seed", "'99999999999999999999'"),
        ("HogWild", "--delay 1", "--delay", "K:SECONDS", "'1'"),
        ("HogWild", "--delay 0:0.1,", "--delay", "K:SECONDS"),
        ("HogWild", "--delay 7:0.1", "--delay 7", "the last worker is 1"),
        ("HogWild", "--target_accuracy 1.5", "--target_accuracy", "at most 1", "'1.5'"),
        ("HogWild", "--target_accuracy 0", "--target_accuracy", "above 0"),
        ("HogWild", "--compute_ms 0", "--compute_ms", "above 0"),
        ("Your-Own", "--compute_ms 5", "unknown argument --compute_ms"),
        ("HogWild", "--timeout 0", "--timeout", "above 0"),
        ("HogWild", "--threads 0", "--threads", "1 or more", "'0'"),
        ("AEASGD", "--moving_rate -0.1", "--moving_rate", "0 or more", "'-0.1'"),
        ("AEAMSGD", "--moving_rate 1.5", "--moving_rate", "at most 1", "'1.5'"),
        ("AEAMSGD", "--momentum 1", "--momentum", "below 1", "'1'"),
        ("SAGN", "--window 0", "--window", "1 or more", "'0'"),
        (DIFFERENT, "--learning_rates 0.1,x", "--learning_rates", "'x'"),
        (DIFFERENT, "--learning_rates 0.1,0", "above 0", "'0'"),
        (GPUS, "--memory_fraction 2", "--memory_fraction", "at most 1"),
        # Names
        ("HogWild", "--data nosuch", "--data", "digits, mnist,", "PATH.npz", "'nosuch'"),
        ("HogWild", "--model resnet", "--model", "linear", "mlp", "cnn", "'resnet'"),
        ("HogWild", "--network foo", "--network", "auto", "private", "host", "'foo'"),
        ("HogWild", "--link_mbit 0", "--link_mbit", "above 0", "'0'"),
        (
            "HogWild",
            "--link_mbit 9 --network host",
            "--link_mbit",
            "private",
            "leave --network out",
        ),
        (GPUS, "--mode both", "asynchronous, synchronous, towers", "'both'"),
        ("In-Graph-Replication", "--mode towers", "--mode", "averaged, threads", "'towers'"),
        ("Actor-Learner", "--data digits", "--data", "one of cartpole", "'digits'"),
        ("Actor-Learner", "--model mlp", "--model", "one of policy", "'mlp'"),
        # Flags that do not fit together
        ("HogWild", "--ps 0", "--ps 0", "needs a parameter server"),
        ("HogWild", "--threads 2 --ps 1", "--ps", "one process", "leave it out"),
        ("HogWild", "--threads 2 --workers=2", "--workers", "one process", "leave it out"),
        ("HogWild", "--data_url http://127.0.0.1:1/", "--data_url", "digits", "leave the flag out"),
        ("Synchronous-SGD", "--backup_workers 2", "--backup_workers 2", "below --workers 2"),
        ("Synchronous-SGD", "--backup_workers -1", "--backup_workers", "0 or more"),
        ("Sign-SGD", "--sign_momentum 1", "--sign_momentum", "below 1", "'1'"),
        ("Sign-SGD", "--backup_workers 1", "--backup_workers"),
        ("DiLoCo", "--backup_workers 2", "--backup_workers 2", "below --workers 2"),
        ("DiLoCo", "--inner lion", "--inner", "adamw"),
        ("Async-DiLoCo", "--delay_period 0", "--delay_period", "1 or more"),
        (DIFFERENT, "--learning_rates 0.1", "got 1 for", "2"),
        (GPUS, "--mode towers --ps 1", "--ps", "one process", "leave it out"),
        ("In-Graph-Replication", "--ps 0", "--ps 0", "needs a parameter server"),
        ("In-Graph-Replication", "--delay 2:0.1", "--delay 2", "the last worker is 1"),
        ("Actor-Learner", "--batch_size 8", "--batch_size", "not use it", "leave it"),
        ("Actor-Learner", "--target_accuracy 0.9", "--target_accuracy", "not use it", "leave it"),
        ("Actor-Learner", "--steps_per_execution=2", "--steps_per_execution", "leave it out"),
        ("Actor-Learner", "--ps 1", "--ps", "no parameter server", "leave it out"),
        ("Actor-Learner", "--data_url http://127.0.0.1:1/", "--data_url", "leave the flag out"),
        ("Distributed-Setup", "--workers 2", "--workers 2", "one worker", "HogWild"),
        ("Non-Distributed-Setup", "--ps 1", "--ps", "one process", "leave it out"),
        ("Non-Distributed-Setup", "--workers 2", "--workers 2", "one worker"),
        # More than there is
        ("HogWild", "--workers 1438", "--workers 1438", "only 1437 examples"),
        ("HogWild", "--data good.npz --workers 13", "--workers 13", "only 12 examples"),
        ("HogWild", "--data good.npz --model cnn", "--model cnn needs images", "[5]"),
        ("HogWild", "--ps 70000", "GB of memory, but", "--ps"),
        ("HogWild", "--workers 70000", "--workers 70000", "only 1437 examples"),
        ("HogWild", "--workers 50000 --data synthetic", "GB of memory, but", "--workers"),
        ("HogWild", "--threads 1000000 --data synthetic", "only 60000 examples"),
        ("HogWild", "--hidden 9007199254740991", "--hidden", "below 2^31"),
        ("HogWild", "--hidden 2147483647", "GB of memory, but", "--hidden"),
        ("HogWild", "--model gpt --data text --width 400000", "GB of memory, but", "--width"),
        ("HogWild", "--model gpt --data text --context 60000", "GB of memory, but", "--context"),
        ("HogWild", "--batch_size 9007199254740991", "GB of memory, but", "--batch_size"),
        ("HogWild", "--steps_per_execution 2000000000", "GB of memory", "--steps_per_execution"),
        ("HogWild", "--data classes.npz", "GB of memory, but", "fewer classes"),
        # Paths
        ("HogWild", "--results ''", "--results", "must be a path, not ''"),
        ("HogWild", "--checkpoint_dir ''", "--checkpoint_dir", "must be a path, not ''"),
        ("HogWild", "--data ''", "--data", "must be a path, not ''"),
        ("HogWild", "--results gs://bucket/run", "--results", "'gs://bucket/run': mount", "copy"),
        ("HogWild", "--checkpoint_dir=gs://bucket/run1", "--checkpoint_dir", "gs://bucket/run1"),
        ("HogWild", "--data s3://bucket/mine.npz", "--data", "this machine", "s3://", "mount"),
        ("Your-Own", "--data hdfs://host:9000/mine.csv", "--data", "this machine", "hdfs://"),
        ("HogWild", "--results file:///tmp/run", "--results", "this machine", "file://"),
        ("HogWild", "--results '~nobody-of-that-name/x'", "--results", "home", "'./~nobody-of"),
        ("HogWild", f"--results {NOT_UTF8}", "--results", "UTF-8", r"dir-\udcff"),
        ("HogWild", f"--checkpoint_dir {NOT_UTF8}", "--checkpoint_dir", "UTF-8"),
        ("HogWild", f"--data {NOT_UTF8}.npz", "--data", "UTF-8"),
        ("HogWild", "--results 'two\nlines'", "--results", r"two\nlines"),
        (
            "HogWild",
            "--results agn",
            "--results",
            "/agn already holds a run of AGN, not of HogWild",
        ),
        ("HogWild", "--results file", "cannot write to", "file", "--results"),
        ("HogWild", "--results file/deeper", "cannot write to", "file/deeper", "--results"),
        ("HogWild", "--results file/much/deeper", "cannot write to", "--results"),
        ("HogWild", "--results new --checkpoint_dir file", "cannot write to", "--checkpoint_dir"),
        ("HogWild", "--data missing.npz", "--data", "no file", "missing.npz"),
        ("Your-Own", "--data missing.csv", "--data: there is no file", "missing.csv"),
        ("Your-Own", "--data digits", "--data: must be PATH.csv, not 'digits'"),
        ("Your-Own", "--dropout much", "--dropout: must be a number, not 'much'"),
        ("Your-Own", "--model mlp", "--model: must be one of dropout_net, not 'mlp'"),
        ("HogWild", "--data mnist --data_url nonsense", "cannot download nonsense/", "--data_url"),
        ("HogWild", "--data mnist --data_url http://", "cannot download http:/", "--data_url"),
        ("HogWild", "--data mnist --data_url http://127.0.0.1:99999", "99999/", "--data_url"),
        ("HogWild", "--data mnist --data_url 'http://a b/'", "http://a b/", "--data_url"),
        ("HogWild", "--data mnist --data_url http://127.0.0.1:1", "refused", "--data_url"),
        # Damaged or unsuitable data: the files that `prepare` writes
        ("HogWild", "--data text.npz", "not a readable .npz", "numpy.savez"),
        ("HogWild", "--data one-array.npz", "not a readable .npz", "numpy.savez"),
        ("HogWild", "--data cut-off.npz", "not a readable .npz", "numpy.savez"),
        ("HogWild", "--data nothing.npz", "not a readable .npz", "numpy.savez"),
        (
            "HogWild",
            "--data no-x_test.npz",
            "lacks x_test",
            "save x_train, y_train, x_test, y_test",
        ),
        ("HogWild", "--data no-arrays.npz", "lacks x_train, y_train, x_test, y_test"),
        ("HogWild", "--data lengths.npz", "x_train (12, 5)", "y_train (11,)"),
        ("HogWild", "--data test-lengths.npz", "x_test (3, 5)", "y_test (4,)"),
        ("HogWild", "--data label-columns.npz", "y_train (12, 1)"),
        ("HogWild", "--data a-number-per-example.npz", "x_train (12,)"),
        ("HogWild", "--data float-labels.npz", "y_train", "integers"),
        ("HogWild", "--data negative-labels.npz", "y_test", "0, 1, 2"),
        ("HogWild", "--data huge-labels.npz", "y_train", "below 2^31"),
        ("HogWild", "--data nan.npz", "x_train", "finite numbers"),
        ("HogWild", "--data infinite.npz", "x_test", "finite numbers"),
        ("HogWild", "--data too-large.npz", "x_train", "float32"),
        ("HogWild", "--data below-2-64.npz", "x_train", "fit in int64", "below 2^63"),
        ("HogWild", "--data two-types.npz", "x_train holds uint8 and x_test float32", "one type"),
        ("HogWild", "--data zeros-and-ones.npz", "only the bytes 0 and 1", "as float32"),
        ("HogWild", "--data text-features.npz", "x_train", "finite numbers"),
        ("HogWild", "--data complex.npz", "x_train", "finite numbers"),
        ("HogWild", "--data shapes.npz", "x_train (5,)", "x_test (6,)", "differ"),
        ("HogWild", "--data new-class.npz", "y_test", "class 7", "in y_train is 2"),
        ("HogWild", "--data objects.npz", "not a readable .npz", "Object"),
        ("HogWild", "--data empty.npz", "x_train (0, 5)"),
        ("HogWild", "--data no-features.npz", "[0]"),
    ]
]

# Mistakes that need a shell: commands for bash, where $run is HogWild's run.sh.
SHELL = {
    "mkdir x; cd x; rmdir ../x; bash $run --results /tmp/never": (
        "the current directory has been deleted",
    ),
    "PYTHON=/no/python bash $run": ("/no/python", "is not a program"),
    "PYTHON=$PWD/lengths.npz bash $run": ("lengths.npz", "is not a program"),
    f"bash $run --results {shlex.quote(NOT_UTF8)}": ("--results", "UTF-8"),
    "bash $run --nonsense": ("unknown argument --nonsense",),
    "DATA_DIR=gs://bucket bash $run --data mnist": ("DATA_DIR", "'gs://bucket'", "this machine"),
    "bash $run --data lengths.npz --results new": ("y_train (11,)",),
    "bash $run --ps 70000 --network host": ("GB of memory, but",),
}
if sys.platform == "linux":  # only Linux limits the address space
    SHELL["ulimit -v 1500000; bash $run"] = ("only 1.5 GB of memory", "ulimit -v")


def arrays(train: int = 12, test: int = 4, classes: int = 3, shape=(5,)) -> dict[str, np.ndarray]:
    """A small valid .npz; example k of the training set contains only the number k."""
    x_train = np.stack([np.full(shape, k, np.float32) for k in range(train)])
    return {
        "x_train": x_train,
        "y_train": np.arange(train) % classes,
        "x_test": np.full((test, *shape), 0.25, np.float32),
        "y_test": np.arange(test) % classes,
    }


FAULTS = {  # name -> changes to valid arrays; None: left out
    "good": {},
    "no-x_test": {"x_test": None},
    "no-arrays": dict.fromkeys(arrays()),
    "lengths": {"y_train": np.arange(11) % 3},
    "test-lengths": {"x_test": np.zeros((3, 5))},
    "label-columns": {"y_train": np.zeros((12, 1), int)},
    "a-number-per-example": {"x_train": np.zeros(12)},
    "float-labels": {"y_train": np.zeros(12)},
    "negative-labels": {"y_test": np.array([0, 1, -1, 0])},
    "huge-labels": {"y_train": np.full(12, 2**64 - 1, np.uint64)},
    "classes": {"y_train": np.full(12, 2**31 - 1, np.uint64)},
    "nan": {"x_train": np.full((12, 5), np.nan)},
    "infinite": {"x_test": np.full((4, 5), np.inf)},
    "too-large": {"x_train": np.full((12, 5), 1e300)},
    "below-2-64": {
        "x_train": np.full((12, 5), 2**64 - 1, np.uint64),
        "x_test": np.ones((4, 5), int),
    },
    "two-types": {"x_train": np.zeros((12, 5), np.uint8)},
    "zeros-and-ones": {
        "x_train": np.eye(12, 5, dtype=np.uint8),
        "x_test": np.eye(4, 5, dtype=np.uint8),
    },
    "text-features": {"x_train": np.full((12, 5), "one")},
    "complex": {"x_train": np.full((12, 5), 1j)},
    "shapes": {"x_test": np.zeros((4, 6))},
    "new-class": {"y_test": np.array([0, 1, 2, 7])},
    "objects": {"x_train": np.array([[None]] * 12)},
    "empty": {"x_train": np.zeros((0, 5)), "y_train": np.zeros(0, int)},
    "no-features": {"x_train": np.zeros((12, 0)), "x_test": np.zeros((4, 0))},
}


def prepare(here: Path) -> None:
    """Fills the folder from which the commands run."""
    for name, changed in FAULTS.items():
        content = {k: a for k, a in (arrays() | changed).items() if a is not None}
        np.savez(here / f"{name}.npz", **content)
    good = (here / "good.npz").read_bytes()
    for name, content in {"text": b"no data", "cut-off": good[:-100], "nothing": b""}.items():
        (here / f"{name}.npz").write_bytes(content)
    with open(here / "one-array.npz", "wb") as file:
        np.save(file, np.zeros((3, 3)))
    (here / "file").write_text("precious")
    # A run that can be continued: it has a checkpoint. Its last launch was AGN's.
    (here / "agn" / "checkpoints").mkdir(parents=True)
    (here / "agn" / "checkpoints" / "model.ckpt-9.index").touch()
    launches = [json.dumps({"scheme": scheme}) + "\n" for scheme in ("HogWild", "AGN")]
    (here / "agn" / "launches.jsonl").write_text("".join(launches))


def state(*folders: Path) -> dict[str, tuple]:
    """Every file and folder, with what reveals a change; without compiled Python."""
    found = {}
    for folder in folders:
        for path in folder.rglob("*"):
            if "__pycache__" not in path.parts:
                about = path.lstat()
                size = about.st_size if path.is_file() else 0
                found[str(path)] = about.st_mode, size, about.st_mtime_ns if size else 0
    return found


def refused(house: Path, here: Path) -> list[dict]:
    """Runs the launcher on every mistake, in a fork of this process, as `run.sh` would.

    An import of TensorFlow would be an error: the launcher must refuse before it starts a task.
    """
    sys.path[:0] = [str(house), str(house / "poison")]
    sys.argv[0] = str(house / "common" / "launch")
    from common.launch import launcher

    os.chdir(here)
    before, answers = state(house, here), []
    for bad in MISTAKES:
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            child = os.fork()
            if child == 0:
                os.dup2(out.fileno(), 1)
                os.dup2(err.fileno(), 2)
                code = 70
                try:
                    launcher.main([str(house / bad.example), *shlex.split(bad.flags)])
                except SystemExit as end:
                    code = end.code
                except BaseException as error:
                    with contextlib.suppress(BaseException):
                        sys.excepthook(type(error), error, error.__traceback__)
                os._exit(code)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            texts = [file.seek(0) or file.read().decode() for file in (out, err)]
        after = state(house, here)
        left = sorted(path for path in {*before, *after} if before.get(path) != after.get(path))
        answers.append({"code": code, "out": texts[0], "err": texts[1], "left": left})
        before = after
    return answers


def all_refused(house: Path, here: Path, env: dict[str, str]) -> list[dict]:
    """Calls `refused` in a separate process."""
    command = [sys.executable, __file__, "--refused", str(house), str(here)]
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def typed(command: str, house: Path, here: Path, env: dict[str, str]) -> dict:
    """Runs a command of `SHELL` as if a user typed it."""
    before = state(house, here)
    env = env | {"run": str(house / "HogWild" / "run.sh")}
    done = subprocess.run(["bash", "-c", command], cwd=here, env=env, capture_output=True)
    err = done.stderr.decode(errors="replace")
    # Bash itself also complains if there is no current directory.
    err = "".join(line for line in err.splitlines(True) if "getcwd" not in line)
    after = state(house, here)
    left = sorted(path for path in {*before, *after} if before.get(path) != after.get(path))
    return {"code": done.returncode, "out": done.stdout.decode(), "err": err, "left": left}


def copy(house: Path) -> None:
    """Copies the examples and common/, to see whether a run writes there, and adds a TensorFlow
    that cannot be imported."""
    (house / "poison").mkdir(parents=True)
    (house / "poison" / "tensorflow.py").write_text("raise RuntimeError('it was imported')")
    ignore = shutil.ignore_patterns("__pycache__", "results", "*.ipynb")
    for path in [ROOT / "common", *(script.parent for script in ROOT.glob("[!.]*/run.sh"))]:
        if path.name != "tests":
            shutil.copytree(path, house / path.name, ignore=ignore)


def is_refused(answer: dict) -> bool:
    """Whether it is one sentence, exit code 2, and nothing left."""
    one = re.fullmatch(r"error: .+\n", answer["err"])
    return bool(one) and (answer["code"], answer["out"], answer["left"]) == (2, "", [])


def row(command: str, answer: dict, folder: str) -> str:
    """A row of the table; in bold if it is not as it should be."""
    said = "<br>".join(f"{answer['out']}{answer['err']}".splitlines())
    found = [said or "nothing", str(answer["code"]), ", ".join(answer["left"]) or "nothing"]
    if not is_refused(answer):
        found = [f"**{text}**" for text in found]
    cells = [cell.replace("|", r"\|") for cell in (f"`{ascii(command)[1:-1]}`", *found)]
    return f"| {' | '.join(cells)} |".replace(f"{folder}/here/", "").replace(f"{folder}/", "")


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        house, here = Path(folder, "house"), Path(folder, "here")
        copy(house)
        here.mkdir()
        prepare(here)
        env = os.environ | {
            "PYTHON": sys.executable,
            "DATA_DIR": folder + "/cache",
            "COLUMNS": "100",
        }
        rows = [
            (f"bash {bad.example}/run.sh {bad.flags}", answer)
            for bad, answer in zip(MISTAKES, all_refused(house, here, env), strict=True)
        ]
        rows += [(command, typed(command, house, here, env)) for command in SHELL]
        print("| input | what it says | exit code | what is left |\n|---|---|---|---|")
        for command, answer in rows:
            print(row(command, answer, folder))
        return int(not all(is_refused(answer) for _, answer in rows))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--refused"]:
        answers = refused(*map(Path, sys.argv[2:]))
        print(json.dumps(answers))
    else:
        sys.exit(main())
