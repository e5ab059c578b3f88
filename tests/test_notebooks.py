"""The notebooks: each one runs and its claims hold; the committed ones are clean."""

import ast
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import answers
import glossary
import jupyter_client
import make_site
import navigation
import nbformat
import notebooks
import printed
import pytest
import refresh
from conftest import ROOT, environment, eventually, processes
from machine import seconds

from common.teach import hosted

ALL = [str(path) for path in notebooks.everything()]
ALONE = [p for p in ALL if ROOT / p not in notebooks.SIDE_BY_SIDE.glob("*.ipynb")]
FINDS = 'it needs common/."\n'  # up to here, each first cell finds the collection
TEXT = str(ROOT / "common" / "requirements.txt")  # any short text
# Parameters that save time. A straggler must be slow compared with this machine.
SHORTER = {
    "Recovery": {"between": 20, "saves": 20},
    "Graphs-and-Sessions": {"steps": 200},
    "When-Does-It-Pay": {"steps": 12, "crowd": 3},
    "Multiple-Workers": {"rounds": 40},
    "Local-then-Global-Variables": {"windows": [1, 5, 20], "local_steps": 60},
    "Actor-Learner": {
        "target": 60.0,
        "episodes": 4,
        "updates": 30 + round(seconds(40)),  # the actor that comes back must come in time
        "slow_updates": 200,
        "crowded": 3,
    },
    "Sparse-Embeddings": {
        "ratings_made": 100_000,
        "steps": 600,
        "short": 200,
        "whole": 6,
        "threaded": 300,
        "seeds": 1,
    },
    "Keras-Model": {"steps": 200},
    "AGN": {"batches": 480, "hidden": 500, "seeds": 1, "simulated": 600},
    "Stale-Synchronous-Parallel": {"steps": 200, "simulated_steps": 1000, "seeds": 1},
    "DC-ASGD": {"steps": 400, "workers": 2, "real_steps": 80},
    "SAGN": {"batches": 400, "window": 10, "hidden": 500, "seeds": 1, "simulated": 600},
    "HogWild": {"steps": 300, "delay": seconds(0.02)},
    "Non-Distributed-Setup": {"steps": 200},
    "Distributed-Setup": {"steps": 60},
    "DOWNPOUR-Easy": {
        "workers": 3,
        "batch": 8,
        "seeds": 1,
        "rate_seeds": 1,
        "rate_batches": 2000,
    },
    "DOWNPOUR": {"steps": 150, "hidden": 500, "seeds": 1},
    "Dynamic-SGD": {"steps": 100, "seeds": 1},
    "AEASGD": {"seeds": 1, "simulated": 600, "exchanges": 16},
    "AEAMSGD": {"exchanges": 16},
    "Local-SGD": {"rounds": 6, "seeds": 1, "batches": 1000},
    "A-Small-GPT": {"text": TEXT, "early": 20, "steps": 60, "letters": 20},
    "Sign-SGD": {
        "updates": 200,
        "few": 3,
        "many": 30,
        "pairs": 1,
        "seeds": 1,
        "lengths": [50, 200],
    },
    "DiLoCo": {"rounds": 5, "seeds": 1, "steps": 20},
    "Async-DiLoCo": {"pushes": 120, "seeds": 1, "steps": 20},
    "Synchronous-SGD": {"steps": 40, "slow_steps": 4, "quick_steps": 30, "delay": seconds(0.2)},
    "All-Reduce": {"steps": 20},
    "Synchronous-SGD-different-learning-rates": {"steps": 40, "seeds": 1, "noisy_steps": 200},
    "Multiple-GPUs-Single-Machine": {"steps": 40},
    "Your-Own": {"steps": 100},
    "Train-and-Serve": {"patience": 4, "long": 400},
    "Sharing-a-Model": {"asked": 5, "batches": 40},
    "Training-Sessions-and-Hooks": {"apart": 10},
    "CIFAR-10": {"steps": 180, "few": 4, "trainers": 1, "seeds": 1},
    "In-Graph-Replication": {"steps": 18, "batch": 512},
    "Model-Parallelism": {"steps": 15},
    "One-Network-per-Device": {
        "steps": 600,
        "widths": [16, 64],
        "batch": 32,
        "delay": 0.002,
        "seeds": 1,
    },
    "TensorFlow-2": {"steps": 80},
    "Replication": {"steps": 20, "most": 3},
    "Synchronous-and-Asynchronous": {"steps": 8, "seeds": 1},
    "Stability": {"numbers": [1, 4, 16], "seeds": 1, "steps": 240},
    "Write-a-Scheme": {"workers": 2},
    "Many-Workers": {"linked": 24, "pushes": 1500, "examples": 32_000, "seeds": 1},
    "Published-Results": {"seeds": 1, "updates": 8000},
    "From-2-to-10000-Workers": {"most": 100},
}
COLD = {"Devices-and-Memory"}  # it asks how much memory the process of a task has
LOOKS = {"Recovery", "TensorFlow-2"}  # they look for tasks among the children of the launcher
PARTS = (r"\*\*What you will learn\*\*", r"\*\*Time needed:\*\* \d+ minutes",
         "^#+ .*in two numbers",
         "^## .*[Ww]hy", r"^> \*\*Takeaway\.\*\*", "^## Exercises", "^## What next")  # fmt: skip


def read(path: str) -> nbformat.NotebookNode:
    return nbformat.read(ROOT / path, as_version=4)


def code_cells(notebook) -> list:
    """Without the cell that papermill adds for parameters."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [cell for cell in cells if "injected-parameters" not in cell.metadata.get("tags", [])]


def texts(cells) -> str:
    return "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


def quoted(cell) -> list[str]:
    """What `notebook.show` and `show_diff` displayed: lines of the collection's own files."""
    shown = [output.get("data", {}).get("text/markdown", "") for output in cell.outputs]
    return [text for text in shown if text.startswith(("From `", "```diff"))]


@pytest.fixture
def kernels(path, warm_python, tmp_path, monkeypatch):
    """The notebook's kernel, and all launchers and tasks that it starts, are such Pythons, unless
    it is in COLD."""
    program, server = (sys.executable, None) if Path(path).stem in COLD else warm_python()
    spec = tmp_path / "jupyter" / "kernels" / "python3" / "kernel.json"
    spec.parent.mkdir(parents=True)
    command = [program, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec.write_text(json.dumps(notebooks.KERNEL | {"argv": command}))
    found = environment(JUPYTER_PATH=str(tmp_path / "jupyter"), PYTHON=program)
    if Path(path).stem not in LOOKS:
        found["WARM_LAUNCHER"] = "1"
    for name, value in found.items():  # the mark reaches the kernel and its children
        monkeypatch.setenv(name, value)
    yield
    assert server is None or eventually(lambda: not server.children(), 5), server.children()


@pytest.mark.slow("executes every notebook")
@pytest.mark.parametrize("path", ALONE)
def test_it_runs_and_its_claims_hold(path, tmp_path, kernels):
    source = ROOT / path
    executed = notebooks.execute(
        source, tmp_path / source.name, SHORTER.get(source.stem), limit=round(seconds(120))
    )
    cells = zip(code_cells(executed), code_cells(read(path)), strict=True)
    assert all(quoted(cell) == quoted(committed) for cell, committed in cells), (
        "the code that it shows has changed: run build/refresh.sh"
    )


@pytest.mark.parametrize("path", ALL)
def test_the_committed_outputs_are_complete_and_clean(path):
    assert (ROOT / path).stat().st_size < 1_000_000
    notebook = read(path)
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert notebook.metadata.get("executed_code") == notebooks.code_hash(notebook), (
        "these outputs are from other code: run build/refresh.sh --notebooks"
    )
    outputs = [output for cell in cells for output in cell.outputs]
    assert not [o for o in outputs if o.output_type == "error" or o.get("name") == "stderr"]
    written = [str(o.get("text", "")) for o in outputs]
    written += [str(v) for o in outputs for k, v in o.get("data", {}).items() if "image" not in k]
    for text in [*written, *(cell.source for cell in notebook.cells)]:
        assert not re.search(r"(?<![\w.:/])/(tmp|work|home|root|usr|Users|private)/", text), text
        assert "\x1b" not in text and "\r" not in text  # colours and progress bars
        assert not re.search(r"\bWARNING\b|INFO:|DeprecationWarning| at 0x[0-9a-f]{6}", text), text
    assert cleaned(notebook) == notebook


def cleaned(notebook):
    return notebooks.cleaned(nbformat.from_dict(notebook))


@pytest.mark.parametrize("path", ALL)
def test_it_has_the_common_structure(path):
    notebook = read(path)
    text = texts(notebook.cells)
    assert text.startswith("# ")
    at = 0
    for part in PARTS:
        found = re.compile(part, re.M).search(text, at)
        assert found, f"{part} is missing, or in the wrong place"
        at = found.start()
    exercises = text[text.index("## Exercises") : text.index("## What next")]
    answers = len(re.findall(r"<details>\s*<summary>Answer</summary>", exercises))
    assert 2 <= answers <= 4 and answers == exercises.count("</details>")
    tags = [tag for cell in notebook.cells for tag in cell.metadata.get("tags", [])]
    assert tags.count("parameters") == 1
    code = [
        cell for cell in code_cells(notebook) if "parameters" not in cell.metadata.get("tags", [])
    ]
    assert "sys.path" in code[0].source and "common" in code[0].source
    assert any("image/png" in o.get("data", {}) for c in code_cells(notebook) for o in c.outputs)
    assert re.search(
        r"^assert |^    assert ", "\n".join(c.source for c in code_cells(notebook)), re.M
    )


@pytest.mark.parametrize("path", ALL)
def test_it_is_short_enough_to_read(path):
    notebook = read(path)
    words = re.findall(r"[^\W_]+(?:['-][^\W_]+)*", texts(notebook.cells))
    assert len(words) <= 3000
    for cell in code_cells(notebook):
        assert len(cell.source.rpartition(FINDS)[2].splitlines()) <= 25, cell.source
        for value in ast.walk(ast.parse(re.sub(r"^[%!].*$", "pass", cell.source, flags=re.M))):
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                assert value.value.strip().count("\n") < 15, "a program: put it in a file"


@pytest.mark.parametrize("path", ALL)
def test_plumbing_is_hidden_and_every_picture_described(path):
    notebook = read(path)
    for cell in code_cells(notebook):
        if re.search(r"sys\.path|plt\.subplots|notebook\.diagram\(", cell.source):
            assert cell.metadata.get("jupyter", {}).get("source_hidden"), cell.source
        for output in cell.outputs:
            if str(output.get("text", "")).startswith("warning: the servers of this notebook"):
                assert cell.metadata.get("jupyter", {}).get("outputs_hidden"), cell.source
            if "image/png" in output.get("data", {}):
                alt = output.metadata.get("image/png", {}).get("alt", "")
                assert len(alt.split()) >= 6 and "TODO" not in alt, cell.source
                assert alt == output.data["text/plain"]


@pytest.mark.parametrize("path", ALL)
def test_its_links_to_neighbours_and_glossary_are_current(path):
    text = (ROOT / path).read_text(encoding="utf-8")
    notebook = navigation.linked(nbformat.reads(text, as_version=4), Path(path))
    expected = nbformat.writes(glossary.linked(notebook, Path(path)))
    assert expected.rstrip("\n") == text.rstrip("\n"), "run build/refresh.sh --fixed"


@pytest.mark.parametrize("path", ALL)
def test_the_numbers_in_its_prose_are_those_it_printed(path):
    notebook = nbformat.read(ROOT / path, as_version=4)
    prose = [cell.source for cell in notebook.cells]
    assert [cell.source for cell in printed.written(notebook, path).cells] == prose, (
        "run build/refresh.sh --fixed"
    )


@pytest.mark.parametrize(
    ("prose", "result"),
    [
        ('in **1**<!-- printed "one call: # ms" -->', '**0.41**<!-- printed "one call: # ms" -->'),
        ('7<!-- printed "in all #" --> bytes', '38,440<!-- printed "in all #" --> bytes'),
        ('-1<!-- printed "a slope of #" -->', '-2.5e-07<!-- printed "a slope of #" -->'),
        ('3<!-- printed "bytes: #" -->', "no number"),
        ('3<!-- printed "w #" -->', "2 numbers"),
        ('3<!-- printed "w" -->', "one #"),
        ('three<!-- printed "in all #" -->', "without a number"),
    ],
)
def test_a_marked_number_is_the_one_that_was_printed(prose, result):
    text = "one\n call: 0.41 ms, in all 38,440, a slope of -2.5e-07, w 1.5, w 2"
    cells = [
        nbformat.v4.new_markdown_cell(prose),
        nbformat.v4.new_code_cell("", outputs=[nbformat.v4.new_output("stream", text=text)]),
    ]
    notebook = nbformat.v4.new_notebook(cells=cells)
    if "printed" in result:
        assert result in printed.written(notebook, "here").cells[0].source
    else:
        with pytest.raises(ValueError, match=result):
            printed.written(notebook, "here")


EXERCISE = re.compile(r"<summary>Answer</summary>(.*?)</details>", re.S)
RAN = re.compile(
    r"\b(our|the|three|simulated) (runs?|seeds) (had|gave|reach|took|sent|makes|ended)|"
    r"\bmeasured\b|\bin our run\b",
    re.I,
)


@pytest.mark.parametrize("path", ALL)
def test_an_answer_quotes_what_was_printed(path):
    """If it says what runs gave, its numbers have marks."""
    for answer in EXERCISE.findall(texts(read(path).cells)):
        assert "<!-- printed" in answer or not RAN.search(answer), answer


def test_every_answer_that_is_quoted_was_printed():
    found = json.loads((ROOT / "measure" / "answers.json").read_text())
    assert set(found) == set(answers.ANSWERS) <= set(ALL)
    for path in found:
        assert "<!-- printed" in "".join(EXERCISE.findall(texts(read(path).cells))), path


def test_a_notebook_without_such_answers_is_refused():
    with pytest.raises(SystemExit, match="no answers of Servers: choose from HogWild"):
        answers.main(["AGN", "Servers"])


def test_the_index_names_the_headings():
    text = (ROOT / "Basics-Tutorial" / "README.md").read_text(encoding="utf-8")
    assert navigation.named(text) == text, "run build/refresh.sh --fixed"
    assert len(navigation.ENTRY.findall(text)) > 60


@pytest.mark.parametrize("path", ALL)
def test_each_formula_stands_on_one_line(path):
    """The site takes a dollar sign without a second one on its line for a dollar sign."""
    text = re.sub(r"```.*?```|`[^`\n]*`|\$\$.*?\$\$", "", texts(read(path).cells), flags=re.S)
    assert not [line for line in text.splitlines() if line.count("$") % 2]


def frames(path: str) -> list[dict]:
    """What stands in for the sliders of a notebook where there is no kernel."""
    outputs = [output for cell in code_cells(read(path)) for output in cell.outputs]
    about = [output.get("metadata", {}).get("image/png", {}) for output in outputs]
    return [each["frames"] for each in about if "frames" in each]


def test_eight_notebooks_or_more_have_something_to_play_with():
    played = [path for path in ALL if frames(path)]
    assert len(played) >= 8
    for path in played:
        for labels in (each["labels"] for each in frames(path)):
            assert len(set(labels)) == len(labels) >= 2, path


PAGES = sorted(str(path.relative_to(ROOT)) for path in refresh.readmes())


def without_badges(path) -> str:
    """A page's text; its badges lead to GitHub's pages of this repository."""
    return re.sub(r"^\[!\[.*$", "", path.read_text(encoding="utf-8"), flags=re.M)


@pytest.mark.parametrize("path", PAGES)
def test_every_picture_of_a_page_is_described(path):
    text = re.sub(r"```.*?```", "", without_badges(ROOT / path), flags=re.S)
    assert "<img" not in text
    for alt, picture in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", text):
        assert len(alt.split()) >= 6 and "TODO" not in alt, picture


def anchors(path) -> set[str]:
    """The anchors of a page's or a notebook's headings."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        text = texts(nbformat.reads(text, as_version=4).cells)
    titles = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", text, flags=re.S), re.M)
    return {make_site.anchor(re.sub(r"[*`]", "", title), path) for title in titles}


@pytest.mark.parametrize("path", [*ALL, *PAGES])
def test_links_lead_somewhere(path):
    source = ROOT / path
    text = texts(read(path).cells) if path.endswith(".ipynb") else without_badges(source)
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", text, flags=re.S)):
        if target.startswith("https://"):
            continue
        file, _, anchor = target.partition("#")
        where = source.parent / file if file else source
        assert where.exists(), target
        assert not anchor or anchor in anchors(where), target


def test_the_tutorial_names_every_notebook_with_its_minutes():
    text = (ROOT / "Basics-Tutorial" / "README.md").read_text()
    rows = re.findall(r"^\| \d+ \|(.*)\| (\d+) \|$", text, re.M)
    named = {name: int(minutes) for row, minutes in rows
             for name in re.findall(r"\]\((\S+\.ipynb)\)", row)}  # fmt: skip
    folder = Path("Basics-Tutorial")
    assert {os.path.normpath(folder / name) for name in named} == set(ALL)
    for name, minutes in named.items():
        said = texts(read(os.path.normpath(folder / name)).cells)
        assert f"**Time needed:** {minutes} minutes" in said, name


@pytest.mark.parametrize("path", [path for path in ALL if "Write-a-Scheme" not in path])
def test_the_minutes_are_honest(path):
    """200 words a minute, code and outputs included, and a minute and a half to run it. Hidden
    cells and exercises are extra, and Write-a-Scheme is one."""
    notebook, seen = read(path), []
    for cell in notebook.cells:
        if not cell.metadata.get("jupyter", {}).get("source_hidden"):
            seen.append(re.sub(r"\]\(\S+\)", "]", cell.source))
        for output in cell.get("outputs", []):
            seen.append(output.get("text") or output.get("data", {}).get("text/markdown") or "")
    without = re.sub(r"## Exercises.*?(?=## What next)", "", " ".join(seen), flags=re.S)
    takes = len(re.findall(r"\w+", without)) / 200 + 1.5
    said = re.search(r"\*\*Time needed:\*\* (\d+) minutes", texts(notebook.cells))[1]
    assert -2.2 < int(said) - takes < 4


def imported(source: str) -> set[str]:
    """The first words of all imported modules."""
    nodes = list(ast.walk(ast.parse(re.sub(r"^[%!].*$", "pass", source, flags=re.M))))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    return {name.partition(".")[0] for name in names}


def test_a_hosted_notebook_installs_what_it_imports():
    """With the packages that `hosted.py` installs, and those that come with them."""
    named = set(hosted.needed())
    installed = named - {"scikit-learn"} | {"sklearn"}
    brought = {"numpy": "tensorflow", "packaging": "tensorflow", "grpc": "tensorflow",
               "keras": "tensorflow", "threadpoolctl": "scikit-learn",
               "IPython": "ipywidgets", "PIL": "matplotlib"}  # fmt: skip
    installed |= {name for name, by in brought.items() if by in named}
    files = [path for path in ROOT.glob("[!.]*/**/*.py") if "results" not in path.parts]
    own = {path.stem for path in files} | {path.name for path in ROOT.iterdir() if path.is_dir()}
    needed = set()
    for path in files:
        if path.relative_to(ROOT).parts[0] not in ("tests", "measure", "build"):
            needed |= imported(path.read_text(encoding="utf-8"))
    for path in ALL:
        needed |= imported("\n".join(cell.source for cell in code_cells(read(path))))
    assert needed - own - set(sys.stdlib_module_names) <= installed


def others() -> list[str]:
    """Processes other than papermill, the kernel, the guards of process groups and the one that
    removes the kernel's temporary folder at the end."""
    own = ("papermill", "ipykernel_launcher", "os.killpg", "resource_tracker", "shutil.rmtree")
    return [command for command in processes().values() if not any(name in command for name in own)]


def pid_of(word: str) -> int:
    return next(pid for pid, command in processes().items() if word in command)


VICTIMS = [("HogWild/HogWild.ipynb", ["-p", "steps", "1000000000"]),
           ("Basics-Tutorial/Servers.ipynb", [])]  # fmt: skip


@pytest.mark.slow("executes notebooks")
@pytest.mark.parametrize("path, flags", [v for v in VICTIMS if v[0] in ALL])
def test_nothing_outlives_a_killed_kernel(path, flags, tmp_path):
    papermill = subprocess.Popen(
        [sys.executable, "-m", "papermill", "--kernel", "python3", "--no-progress-bar", *flags,
         "--cwd", str((ROOT / path).parent), str(ROOT / path), str(tmp_path / "out.ipynb")],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env=environment(),
    )  # fmt: skip
    try:
        wanted = "worker.py" if "HogWild" in path else ""
        assert eventually(lambda: any(wanted in command for command in others()), 60)
        os.kill(pid_of("ipykernel_launcher"), signal.SIGKILL)
        assert eventually(lambda: not others(), 5), others()
        helpers = ("os.killpg", "shutil.rmtree")
        assert eventually(lambda: not any(h in c for c in processes().values() for h in helpers), 5)
    finally:
        papermill.kill()
        papermill.wait()


@pytest.mark.slow("a kernel and a run in it")
def test_an_interrupted_cell_stops_its_run():
    """The stop button ends the run; the kernel continues."""
    manager = jupyter_client.KernelManager(kernel_name="python3")
    manager.start_kernel(env=environment(), cwd=str(ROOT / "HogWild"))
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(seconds(60))
        client.execute(
            "import sys; sys.path.insert(0, '..')\n"
            "from common.teach import notebook\n"
            "notebook.run('HogWild', '--steps', 10**9)",
            stop_on_error=False,
        )
        assert eventually(lambda: any("worker.py" in command for command in others()), 60)
        manager.interrupt_kernel()
        assert eventually(lambda: not others(), 5), others()
        assert client.get_shell_msg(timeout=seconds(30))["content"]["ename"] == "KeyboardInterrupt"
        answer = client.execute_interactive(
            "print('alive')", timeout=seconds(30), output_hook=lambda _: 0
        )
        assert answer["content"]["status"] == "ok"
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_a_kernel_warns_once_of_open_ports_and_leaves_no_folder(tmp_path):
    """Even if it is killed."""
    code = (
        "import os, sys; from common.teach import notebook; print(*notebook.free_addresses(2)); "
        "notebook.free_addresses(1); notebook.warn_once(); "
        "print(notebook.SCRATCH, flush=True); os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                            cwd=ROOT, env=environment(TMPDIR=str(tmp_path)))  # fmt: skip
    assert killed.returncode == -9
    warning, found, folder = killed.stdout.splitlines()
    assert warning.startswith("warning: the servers of this notebook are open on all interfaces of")
    assert re.fullmatch(r"localhost:\d+ localhost:\d+", found)
    folder = Path(folder)
    assert folder.parent == tmp_path
    assert eventually(lambda: not folder.exists(), 5)


def test_a_task_s_line_is_waited_for_to_its_end(tmp_path):
    """Python writes it in pieces."""
    (tmp_path / "task.py").write_text(
        "import pathlib, sys, time\nprint('It finds w', end=' = ')\n"
        "while not pathlib.Path(sys.argv[1]).exists():\n    time.sleep(0.01)\n"
        "print(0.5)\ntime.sleep(60)\n"
    )
    code = f"""
import pathlib
from common.teach import notebook

class Tasks(notebook.Tasks):
    def log(self, name):
        found = super().log(name)
        if "w =" in found:
            pathlib.Path({str(tmp_path / "seen")!r}).touch()
        return found

tasks = Tasks()
tasks.start("task", {str(tmp_path / "task.py")!r}, {str(tmp_path / "seen")!r})
print(tasks.wait_for("task", "finds w"))
tasks.stop()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT,
                          env=environment(), timeout=seconds(60))  # fmt: skip
    assert done.stdout == "It finds w = 0.5\n", done.stderr


def test_a_task_s_line_is_found_although_tensorflow_has_warned_below_it(tmp_path):
    (tmp_path / "task.py").write_text(
        "import sys\nprint('w = 0.4')\nprint('w = 0.5')\nprint('Socket closed', file=sys.stderr)\n"
    )
    code = f"""
from common.teach import notebook

tasks = notebook.Tasks()
tasks.start("task", {str(tmp_path / "task.py")!r})
log = tasks.wait_for("task")
print(repr(log), tasks.wait_for("task", "w ="), tasks.wait_for("task", "w =", count=2), sep="\\n")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT,
                          env=environment(), timeout=seconds(60))  # fmt: skip
    log = repr("w = 0.4\nw = 0.5\nSocket closed\n")
    assert done.stdout == f"{log}\nw = 0.5\nw = 0.5\n", done.stderr


@pytest.mark.parametrize(
    ("script", "servers", "arguments", "said"),
    [
        ("parameter_server_worker", 2, [], "worker 1 finds w = 0.5"),
        ("multiple_workers_worker", 1, ["1", "40"], "is ready"),
    ],
)
def test_a_worker_leaves_although_the_ps_ends_before_it_answers(
    script, servers, arguments, said, tmp_path
):
    """Its message that it leaves ends the ps; here, it never gets the answer."""
    folder = ROOT / "Basics-Tutorial"
    (tmp_path / "worker.py").write_text(f"""
import runpy
import sys
from common.cluster import tf

def operation(fetch):
    return getattr(fetch, "op", fetch)

class Session(tf.Session):
    def run(self, fetches, *rest, **more):
        found = super().run(fetches, *rest, **more)
        for each in map(operation, tf.nest.flatten(fetches)):
            queue = each.inputs[0].op if each.type == "QueueEnqueueV2" else None
            if queue and queue.get_attr("shared_name").startswith(b"done"):
                raise tf.errors.UnavailableError(None, None, "Socket closed")
        return found

tf.Session = Session
runpy.run_path({str(folder / f"{script}.py")!r}, run_name="__main__")
""")
    code = f"""
from common.teach import notebook
import tensorflow.compat.v1 as tf

tf.disable_eager_execution()
addresses, tasks = notebook.free_addresses({servers + 2}), notebook.Tasks()
ps, workers = addresses[:{servers}], addresses[{servers}:]
hosts = ",".join(ps), ",".join(workers)
for k in range({servers}):
    tasks.start(f"ps {{k}}", {str(folder / "leaving_ps.py")!r}, k, *hosts)
config = tf.ConfigProto(device_filters=["/job:ps", "/job:worker/task:0"])
server = tf.train.Server({{"ps": ps, "worker": workers}}, "worker", 0, config=config)
with tf.device("/job:ps/task:0"):
    tf.Variable(0.5, name="w"), tf.Variable(0.5, name="global/w")
    tf.Variable(0, dtype=tf.int64, name="global/pushes")
    order = tf.FIFOQueue(-1, tf.string, [[]], shared_name="orders-1").enqueue("leave")
with tf.Session(server.target, config=config) as session:
    session.run(tf.global_variables_initializer())
    session.run(order)
worker = tasks.start("worker", {str(tmp_path / "worker.py")!r}, *{arguments}, *hosts)
print(tasks.wait_for("worker", {said!r}, {seconds(60)}), worker.popen.wait(), tasks.log("worker"))
for k in range({servers}):
    print(tasks.wait_for(f"ps {{k}}", "task 1 has left", {seconds(60)}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT,
                          env=environment(), timeout=seconds(120))  # fmt: skip
    assert f"{said} 0 " in done.stdout, done.stdout + done.stderr
    assert done.stdout.count("task 1 has left") == servers, done.stdout + done.stderr
