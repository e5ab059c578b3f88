"""Regenerates the parts of the READMEs and of the pages in docs/ that quote what the code really
prints, and executes the notebooks. `refresh.sh` runs it.

A generated part stands between `<!-- KIND: ARGUMENT -->` and `<!-- end -->`:

    output: COMMAND    runs it from the root and quotes its output; curves.png goes beside run.sh
    diff: A B          the differences between two scripts, without comments and docstrings
    lines: FILE FROM   quotes the paragraph of FILE that begins with FROM; with FROM ... TO, all
                       lines up to one that begins with TO
    file: FILE         quotes a whole file
    overview: ROOT     pictures of who holds what and who sends what, with links
    numbers: WORDS     the number to remember from each notebook under a heading of the tutorial
    table: FILE WORDS  the first table under the heading WORDS of a Markdown file
    seconds: EXAMPLE   how long the quoted run of an example took, from the command to the last line
    sweep: EXAMPLE     accuracy by learning rate and workers, as sweep.py measured it
    searches: KIND     a table of what searches.py measured: seeds, speed or actors
    linked: KIND       real runs over slow links, beside the same simulated: speed or updates
    slow_link: KIND    a table of what slow_link.py measured with the small GPT: target, ...
    scoreboard: KIND   a table of what scoreboard.py measured: time MBIT, bytes, of SCHEME, ...
    machines: KIND     what several_machines.py measured across machines, or what a run there showed
    benchmark: speed   the results in benchmark.json
"""

import argparse
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection
from pathlib import Path

import glossary
import linked
import navigation
import nbformat
import notebooks
import overview
import printed
import scoreboard_page
import searches
import several_machines
import slow_link

from common.teach import quotes
from common.told.example import example_of

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"(<!-- (\w+): (.*?) -->)(.*?)(<!-- end -->)", re.S)
MEASURED = ROOT / "build" / "measured.json"  # seconds of the quoted runs


def readmes(first: Collection[str] = ()) -> list[Path]:
    """Every page that may have generated parts. The READMEs of the folders `first` come first, the
    root's last, since it quotes what the others measured."""
    pages = sorted(ROOT.glob("[!.]*/README.md"), key=lambda page: (page.parent.name not in first,
                                                                   page.parent.name))  # fmt: skip
    return [*pages, *sorted(ROOT.glob("docs/*.md")), ROOT / "Scoreboard.md", ROOT / "README.md"]


def diff(argument: str) -> str:
    """The differences between two scripts, `diff: A B`."""
    a, b = argument.split()
    return quotes.diff(ROOT / a, ROOT / b, a, b)


def paragraph(argument: str) -> str:
    """The lines of a file from one that begins with the given words up to the next blank line, or
    up to the line that begins with the words after ` ... `."""
    file, _, words = argument.partition(" ")
    start, _, end = words.partition(" ... ")
    return quotes.lines(ROOT / file, start, end)


def whole_file(file: str) -> str:
    """A file as a Markdown block."""
    kind = {".py": "python", ".sh": "bash"}.get(Path(file).suffix, "")
    return f"```{kind}\n{(ROOT / file).read_text(encoding='utf-8').rstrip()}\n```"


def table(argument: str) -> str:
    """The first table below a heading of a Markdown file, `table: FILE WORDS`."""
    file, _, heading = argument.partition(" ")
    text = (ROOT / file).read_text(encoding="utf-8")
    found = re.search(rf"^#+ {re.escape(heading)}\n[^#|]*((\|.*\n)+)", text, re.M)
    if not found:
        raise ValueError(f"{file} has no table under the heading {heading!r}")
    return found[1].rstrip()


def seconds(example: str) -> str:
    measured = json.loads(MEASURED.read_text())
    if example not in measured:
        sys.exit(f"{example} has no measured time yet: run build/refresh.sh, without --fixed")
    return f"{measured[example]:.0f} s"


def benchmark(_: str) -> str:
    """The results of `benchmark.py --json`: a Markdown table, and an explanation of its rows."""
    found = json.loads((ROOT / "measure" / "benchmark.json").read_text())
    medians, work = found["medians"], found["work"]
    strategy = medians["ParameterServerStrategy"]
    lines = ["| | examples/s | relative to ParameterServerStrategy |", "|---|---|---|"]
    for name in medians:
        if medians[name] > 1000:  # the others are seconds and updates
            lines.append(f"| {name} | {medians[name]:,.0f} | {medians[name] / strategy:.1f} |")
    torch = ["- PyTorch's two processes average their parameters, with gloo and without a ps."]
    torch *= any(name.startswith("PyTorch") for name in medians)
    ratio = medians["start-up"] / medians["import tensorflow"]
    memory = ", ".join(f"{task} {mb:,.0f} MB" for task, mb in sorted(found["memory_mb"].items()))
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    return "\n".join([
        *lines, "",
        f"Medians of {work['repeats']} runs; HogWild's have {work['steps']:,} steps.", "",
        "- The HogWild run makes one step per session call, as all examples do by default; with "
        "`--steps_per_execution 10` it makes ten. The bare loop is the same graph, one step per "
        "call, without hooks, logs or checkpoints.",
        "- The loop with ParameterServerStrategy follows TensorFlow's guide and returns the loss "
        "of each step. The tuned one avoids overhead: one thread per task, and no loss returned. "
        "With ten steps a call, it pulls and pushes ten times, as HogWild does; in a window of "
        "10, ten mini-batches share one pull and one push.",
        *torch,
        "- Two single processes, one core each, are the limit on this machine: no scheme can be "
        "faster.",
        "",
        "The mean staleness of AGN with a window of 10 was "
        f"{medians['mean staleness, AGN']:.2f}; it would be "
        f"{medians['if evenly spread, AGN']:.2f} if the other worker's updates were spread "
        "evenly from each pull to the next. From the command to the first "
        f"step, HogWild took {medians['start-up']:.1f} s, {ratio:.1f} times as long as `import "
        f"tensorflow` alone (tasks import it without Keras). Peak memory: {memory}. "
        f"Versions: {versions}.",
    ])  # fmt: skip


def accuracies(found: list[float | None]) -> str:
    """The mean of three seeds and their range; runs whose loss was NaN (None) are counted."""
    ended = [100 * a for a in found if a is not None]
    lost = len(found) - len(ended)
    if lost:
        return ", ".join([f"NaN {lost} of {len(found)} times", *(f"{a:.1f}%" for a in ended)])
    return f"{sum(ended) / len(ended):.1f}% ({min(ended):.1f} to {max(ended):.1f})"


def sweep(example: str) -> str:
    """The results of `sweep.py`: a Markdown table with the default rate in bold."""
    found = json.loads((ROOT / "measure" / "sweep.json").read_text())[example]
    defaults, _ = example_of(ROOT / example / "worker.py")
    lines = ["| learning rate | 2 workers | 4 workers |", "|---|---|---|"]
    for rate, reached in found.items():
        cells = [rate, *(accuracies(found) for found in reached.values())]
        if float(rate) == defaults["learning_rate"]:
            cells = [f"**{cell}**" for cell in cells]
        lines.append(f"| {' | '.join(cells)} |")
    text = ("Test accuracy after the default number of steps: the mean of three seeds, and their "
            "range (`measure/sweep.py`). One test example is worth 0.3 points, and the standard "
            "error of an accuracy near 98% is 0.7: smaller differences mean nothing. Bold: "
            "the default. We choose it so that twice the default works, too.")  # fmt: skip
    return "\n".join([text, "", *lines])


@functools.cache
def output(command: str) -> str:
    """Runs a command of a README and quotes it with its output."""
    began = time.monotonic()
    env = os.environ | {"PYTHON": sys.executable, "COLUMNS": "96"}
    done = subprocess.run(command, shell=True, cwd=ROOT, env=env, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
    took = time.monotonic() - began
    if done.returncode:
        sys.exit(f"{command} ended with exit code {done.returncode}:\n{done.stdout}")
    where = re.search(r"results in (\S+)", done.stdout)
    example = re.match(r"bash (\S+)/run\.sh( --data digits)?$", command)  # CIFAR-10 needs it
    if example:
        shutil.copy(ROOT / where[1] / "curves.png", ROOT / example[1] / "curves.png")
        known = json.loads(MEASURED.read_text()) if MEASURED.exists() else {}
        known[example[1]] = round(took, 1)
        MEASURED.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n")
    if where:
        shutil.rmtree(ROOT / where[1])
    screen = "\n".join(line.rstrip() for line in done.stdout.strip().splitlines())
    return f"```console\n$ {command}\n{screen}\n```"


FIXED = {"diff": diff, "lines": paragraph, "file": whole_file, "table": table,
         "overview": overview.table, "numbers": navigation.numbers}  # fmt: skip
MEASURING = {"output": output}
QUOTED = {"seconds": seconds, "benchmark": benchmark, "sweep": sweep,
          "searches": searches.table, "linked": linked.table, "slow_link": slow_link.table,
          "scoreboard": scoreboard_page.table,
          "machines": several_machines.table}  # fmt: skip


def refreshed(text: str, kinds: dict, folders: Collection[str] = ()) -> str:
    """Returns a page's text with the generated parts regenerated.

    Args:
        text: the page's.
        kinds: kind -> function that makes such a part; parts of other kinds stay as they are.
        folders: if given, regenerates only parts that name a file in one of them.
    """

    def part(match):
        head, kind, argument, _, end = match.groups()
        words = {word.partition("/")[0] for word in argument.split()}
        if kind not in kinds or (folders and words.isdisjoint(folders)):
            return match[0]
        try:
            made = kinds[kind](argument)
        except (OSError, ValueError) as error:
            sys.exit(f"{head} cannot be regenerated: {error}")
        return f"{head}{made}{end}" if kind == "seconds" else f"{head}\n{made}\n{end}"

    return BLOCK.sub(part, text)


def replace(path: Path, text: str) -> None:
    """Writes a page, completely or not at all, if its text has changed."""
    if text == path.read_text(encoding="utf-8"):
        return
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(text)
    os.chmod(file.name, 0o644)
    os.replace(file.name, path)
    print(f"refreshed {path.relative_to(ROOT)}", flush=True)


def link_notebooks() -> None:
    """Writes links to neighbours and glossary, and the numbers that prose takes from outputs, into
    every notebook where they have changed; and headings and numbers into the tutorial's page."""
    for path in navigation.order():
        text = (ROOT / path).read_text(encoding="utf-8")
        notebook = navigation.linked(nbformat.reads(text, as_version=4), path)
        notebook = printed.written(glossary.linked(notebook, path), path)
        if nbformat.writes(notebook).rstrip("\n") != text.rstrip("\n"):
            nbformat.write(notebook, ROOT / path)
            print(f"linked {path}", flush=True)
    page = ROOT / navigation.TUTORIAL / "README.md"
    text = navigation.named(page.read_text(encoding="utf-8"))
    replace(page, refreshed(text, {"numbers": navigation.numbers}))


def checked(names: list[str]) -> list[str]:
    """The folder names without a trailing slash; exits with a one-line error if one is unknown."""
    folders = [name.rstrip("/") for name in names]
    for name in folders:
        if not (ROOT / name / "README.md").is_file() or "/" in name or name.startswith("."):
            sys.exit(f"{name!r} is not a folder of the collection with a README.md")
    return folders


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Regenerates what READMEs and notebooks quote.")
    parser.add_argument("folders", nargs="*", metavar="FOLDER", help="only these: their README, "
                        "their notebooks, and what other pages quote from them")  # fmt: skip
    parser.add_argument("--fixed", action="store_true", help="only what needs no run")
    parser.add_argument(
        "--benchmark", action="store_true", help="for refresh.sh, which runs benchmark.py first"
    )
    parser.add_argument("--notebooks", nargs="*", metavar="NAME", help="only these, or all of them")
    return parser


def main() -> None:
    flags = parser().parse_args()
    if flags.notebooks is not None:
        notebooks.refresh_all(flags.notebooks)
        link_notebooks()
        return
    folders = checked(flags.folders)
    kinds = FIXED | QUOTED if flags.fixed else FIXED | MEASURING | QUOTED
    for path in readmes(folders):
        own = path.parent.name in folders and path.parent != ROOT
        text = path.read_text(encoding="utf-8")
        replace(path, refreshed(text, kinds, () if own else folders))
    link_notebooks()
    if flags.fixed:
        return
    chosen = [str(path) for path in notebooks.everything() if path.parts[0] in folders]
    if chosen or not folders:
        notebooks.refresh_all(chosen)
        link_notebooks()


if __name__ == "__main__":
    main()
