"""What the READMEs and the other pages say is true: quotes, paths, links, flags, commands."""

import difflib
import hashlib
import re
import subprocess
import sys

import formulas
import pytest
import refresh
import simulate
from conftest import ROOT, environment
from schemes import SCHEMES

from common import flags
from common.flags import IF_NAMED
from common.teach import quotes
from common.told.example import example_of, main_script

SIMULATED = ROOT / "Many-Workers"  # an example without processes

ELSEWHERE = ROOT / "Several-Machines"  # runs the others, on other machines

EXAMPLES = sorted(
    path.parent for path in ROOT.glob("[!.]*/run.sh")
    if path.parent not in (ROOT / "tests", ELSEWHERE)
)  # fmt: skip
# What tools, GitHub or the first look at a repository need at the root. A page belongs in docs/.
AT_THE_ROOT = {".gitignore", ".pre-commit-config.yaml", "CITATION.cff", "LICENSE", "README.md",
               "Scoreboard.md", "pyproject.toml"}  # fmt: skip
FOLDERS = {".binder", ".ci", ".github", "Basics-Tutorial", "build", "common", "docs", "measure",
           "tests", ELSEWHERE.name}  # fmt: skip

READMES = [str(path.relative_to(ROOT)) for path in refresh.readmes()]
GUIDE = ("README.md", "docs/OPERATIONS.md", "docs/QUESTIONS.md")  # commands here start in the root


def tracked() -> list[str]:
    """The files of the repository; those in its folder, if it was copied without Git."""
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"],
                            cwd=ROOT, capture_output=True, text=True)  # fmt: skip
    found = listed.stdout.splitlines() or [str(p.relative_to(ROOT)) for p in ROOT.rglob("*")]
    return [path for path in found if (ROOT / path).is_file()]


def text(readme: str) -> str:
    return (ROOT / readme).read_text(encoding="utf-8")


@pytest.mark.parametrize("readme", READMES)
def test_quotes_match_the_files(readme):
    old = text(readme)
    assert refresh.refreshed(old, refresh.FIXED | refresh.QUOTED) == old, "run build/refresh.sh"
    for head, kind, argument, body, _ in refresh.BLOCK.findall(old):
        assert body.strip(), f"{head} is empty: run build/refresh.sh"
        assert kind in refresh.FIXED | refresh.QUOTED | refresh.MEASURING
        assert argument


ON_GITHUB = "../../"  # from the front page there: of the repository, whatever its address


@pytest.mark.parametrize("readme", READMES)
def test_links_and_paths_exist(readme):
    here = (ROOT / readme).parent
    prose = re.sub(r"```.*?```", "", text(readme), flags=re.S)
    titles = re.findall(r"^#+ (.*)$", text(readme), re.M)
    anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
    for target in re.findall(r"\]\(([^)]+)\)", prose):
        if target.startswith("#"):
            assert target[1:] in anchors
        elif readme == "README.md" and target.startswith(ON_GITHUB):
            named = re.search(r"actions/(workflows/\w+\.yml)", target)
            assert (
                target.endswith("deployments/github-pages")
                or (ROOT / ".github" / named[1]).exists()
            )
        elif not target.startswith("https://"):
            assert (here / target.partition("#")[0]).exists(), target
    for quoted in re.findall(r"`([^`\s]+/[^`\s]*|[\w-]+\.(?:py|sh|txt|toml|mplstyle))`", prose):
        variable = re.match(r"(NAME|trial_T|params|global_step|weights_0|biases_0)/", quoted)
        other = (
            quoted.startswith(("HogWild/results", "logs/", "time/", "speed/", "schedule/"))
            or "://" in quoted
        )
        if variable or other:
            continue
        places = [ROOT / quoted, here / quoted, ROOT / "HogWild" / quoted, ROOT / "common" / quoted]
        assert any(place.exists() for place in places), quoted


@pytest.mark.parametrize("readme", READMES)
def test_every_picture_is_described(readme):
    for said in re.findall(rf"!\[([^\]]*)\]\((?!{re.escape(ON_GITHUB)}actions)", text(readme)):
        assert len(said.split()) >= 12, said


@pytest.mark.parametrize("readme", READMES)
def test_flags_exist(readme):
    scripts = [main_script(folder) for folder in EXAMPLES if folder != SIMULATED]
    known = "".join(
        flags.parser(example_of(script)[0], folder=script.parent).format_help()
        for script in scripts
    )
    known += refresh.parser().format_help() + "".join(
        simulate.parser(scheme).format_help() for scheme in SCHEMES
    )
    known += " --fast --job_name --task_index --ps_hosts --worker_hosts --chief_hosts --logdir"
    # Those that an example may name in its DEFAULTS.
    known += " ".join(f"--{name}" for name in IF_NAMED)
    known += " --universal --python-version --no-annotate --no-header --depth"
    if readme.startswith(ELSEWHERE.name) or readme == "docs/QUESTIONS.md":
        scripts = (
            ELSEWHERE / "ssh.py",
            ELSEWHERE / "slurm.py",
            ROOT / "common/commands/kubernetes.py",
        )
        known += "".join(path.read_text() for path in scripts)
        # Those of sbatch and kubectl.
        known += " --nodes --ntasks --cpus --time --prefix --for --max --tail"
    for flag in set(re.findall(r"(?<![\w-])--\w+", text(readme))):
        assert re.search(rf"{flag}\b", known), flag


def commands(readme: str) -> list[str]:
    blocks = re.findall(r"```bash\n(.*?)```", text(readme), re.S)
    lines = [line.split("   #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line and not line.startswith("#!")]


def test_commands_can_be_typed():
    """Every command of the guide's pages names scripts and flags that exist."""
    found = [command for page in GUIDE for command in commands(page)]
    assert len(found) >= 10
    for command in found:
        words = re.split(r"\s+|&&", command)
        scripts = [word for word in words if re.search(r"\.(py|sh)$", word) and "../" not in word]
        assert all((ROOT / script).is_file() for script in scripts), command
        known = command.startswith(("bash ", ".venv/bin/python ", "mkdir ", "git clone --depth 1 "))
        assert known, command
        match = re.match(r"bash (\S+)/run\.sh(.*)", command)
        if match and match[1] == SIMULATED.name:
            simulate.parsed(match[2].split())
        elif match and match[1] != "tests" and "../" not in command:
            script = main_script(ROOT / match[1])
            parser = flags.parser(example_of(script)[0], folder=script.parent)
            parser.parse_args(match[2].split())


def test_quoted_output_matches_a_run(default_run):
    """A run prints what the README shows, except for numbers."""
    (quoted,) = re.findall(r"\$ bash HogWild/run.sh\n(.*?)\n```", text("README.md"), re.S)

    def shape(screen: str) -> list[str]:
        lines = [re.sub(r" +", " ", line.strip()) for line in screen.strip().splitlines()]
        lines = [re.sub(r"results in \S+", "results in DIR", line) for line in lines]
        return sorted({re.sub(r"[\d.,e-]*\d%?", "N", line) for line in lines})

    assert shape(quoted) == shape(default_run("HogWild").output)


def test_every_new_line_of_distribution_is_marked():
    """Distributed-Setup marks with `# NEW:` exactly the lines that its parent lacks.

    The mark is on the line, or in a comment above it.
    """
    parent = (ROOT / "Non-Distributed-Setup" / "train.py").read_text().splitlines()
    known = {line.split("  #")[0].strip() for line in parent}
    child = (ROOT / "Distributed-Setup" / "worker.py").read_text()
    code = child.split('"""', 2)[2].splitlines()
    for above, line in zip(["", *code], code):
        bare = line.split("  #")[0].strip()
        if bare and not bare.startswith("#"):
            marked = "# NEW:" in line or above.strip().startswith("# NEW:")
            assert marked == (bare not in known), line


def test_hogwild_differs_only_by_its_scheme():
    """In its defaults, and a shard of the data for each worker."""
    a, b = (quotes.code(ROOT / name / "worker.py") for name in ("Distributed-Setup", "HogWild"))
    changed = [line.split("=")[0].strip() for line in b if line not in a]
    assert changed == ["DEFAULTS", "next_batch"]


@pytest.mark.parametrize("example", formulas.folders())
def test_the_diff_is_the_scheme(example):
    """Changed lines without comments: lines added or lines removed, whichever are more."""
    row = formulas.of(example)
    a, b = (quotes.code(s) for s in (formulas.parent_of(example), main_script(ROOT / example)))
    changes = list(difflib.unified_diff(a, b, n=0, lineterm=""))[2:]
    come, go = (sum(line[0] == sign for line in changes) for sign in "+-")
    assert max(come, go) <= row.changed, "\n".join(changes)


def test_the_front_page_is_short():
    """Longer text belongs on the pages in docs/."""
    visible = re.sub(r"<!--.*?-->|(?<=!\[)[^]]*", "", text("README.md"))
    words = [word for word in visible.split() if re.search(r"\w", word)]  # not "|", not "-"
    assert len(words) <= 1500
    pictures = re.findall(r"!\[[^]]*\]\(([^)]+)", text("README.md"))
    large = [each for each in pictures if not each.startswith((ON_GITHUB, "docs/overview/"))]
    assert len(large) == 2, "two pictures"


def test_the_front_page_leads_to_every_page():
    named = set(re.findall(r"\]\((docs/[\w-]+\.md)", text("README.md")))
    assert named == {f"docs/{path.name}" for path in ROOT.glob("docs/*.md")}


def test_the_root_holds_only_what_must_be_there():
    """GitHub lists it before the README."""
    files = {path for path in tracked() if "/" not in path}
    folders = {path.split("/")[0] for path in tracked() if "/" in path}
    assert files == AT_THE_ROOT
    assert folders <= FOLDERS | {folder.name for folder in EXAMPLES}


def test_every_mention_of_a_moved_file_leads_to_it():
    """In texts, comments and messages: as a path from the root, or from the file's folder."""
    moved = [path for path in (ROOT / "docs").iterdir() if path.is_file()]
    moved.append(ROOT / "build/site.sh")
    names = "|".join(re.escape(path.name) for path in moved)
    for path in tracked():
        if not path.endswith((".md", ".ipynb", ".py", ".sh", ".yml", ".toml", ".txt", ".cff")):
            continue
        shown = re.sub(r"\[[^\]]*\](?=\()", "", text(path))  # without the words of links
        for found in re.findall(rf"(?<![\w./-])[\w./-]*\b(?:{names})\b", shown):
            where = [ROOT / found, (ROOT / path).parent / found]
            assert any(place.exists() for place in where), f"{path} names {found}"


def test_the_catalogue_is_complete():
    """Every folder with a run.sh is in one of the root README's tables, with its README, notebook
    and duration, and has the usual scripts.

    Its README names each script that the other folders do not have.
    """
    links = r"\[([\w-]+)\]\(\1/README\.md\), \[notebook\]\(\1/\1\.ipynb\)"
    table = re.findall(rf"^\| {links} \| .+ \| <!-- seconds: \1 -->", text("README.md"), re.M)
    assert sorted(table) == [folder.name for folder in EXAMPLES]
    assert f"| [{ELSEWHERE.name}]({ELSEWHERE.name}/README.md)" in text("README.md")
    named = text(f"{ELSEWHERE.name}/README.md")
    assert not [path.name for path in ELSEWHERE.glob("*.py") if path.name not in named]
    for folder in EXAMPLES:
        scripts = {path.name for path in folder.glob("*.py")}
        readme = text(f"{folder.name}/README.md")
        if folder == SIMULATED:
            assert not [name for name in scripts if name not in readme]
            continue
        usual = {"ps.py", "worker.py"} if "worker.py" in scripts else {"train.py"}
        usual |= {main_script(folder).name}
        if example_of(main_script(folder))[0].get("ps", 1) is None:
            usual -= {"ps.py"}
        assert usual <= scripts, folder.name
        assert not [name for name in scripts - usual if name not in readme], folder.name


def test_every_example_has_its_own_readme_and_picture():
    """A copied folder has its parent's, which show another scheme's run."""
    titles, pictures = {}, {}
    for folder in EXAMPLES:
        again = f"run build/refresh.sh {folder.name}"
        assert (folder / "README.md").is_file(), f"{folder.name} has no README.md"
        title = text(f"{folder.name}/README.md").splitlines()[0].removeprefix("# ")
        other = titles.setdefault(title, folder.name)
        assert other == folder.name, f"{folder.name}/README.md has the title of {other}'s"
        assert (folder / "curves.png").is_file(), f"{folder.name} has no curves.png: {again}"
        picture = hashlib.sha256((folder / "curves.png").read_bytes()).hexdigest()
        other = pictures.setdefault(picture, folder.name)
        assert other == folder.name, f"{folder.name}/curves.png is that of {other}: {again}"


def test_an_unknown_folder_ends_with_a_one_line_error():
    done = subprocess.run(["bash", "build/refresh.sh", "No-Such-Folder"], cwd=ROOT,
                          env=environment(), capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 1 and not done.stdout
    assert done.stderr == "'No-Such-Folder' is not a folder of the collection with a README.md\n"


def test_a_chosen_folder_leaves_the_other_blocks_alone():
    page = ("<!-- lines: A/worker.py x -->\nold\n<!-- end -->\n"
            "<!-- diff: B/worker.py A/worker.py -->\nold\n<!-- end -->\n"
            "<!-- output: bash AB/run.sh -->\nold\n<!-- end -->\n")  # fmt: skip
    kinds = dict.fromkeys(("lines", "diff", "output"), lambda argument: "new")
    assert refresh.refreshed(page, kinds).count("new") == 3
    assert refresh.refreshed(page, kinds, ["A"]).count("new") == 2
    assert refresh.refreshed(page, kinds, ["B"]).count("new") == 1
    assert refresh.refreshed(page, kinds, ["C"]) == page


def test_a_quoted_table_is_the_one_below_its_heading(tmp_path, monkeypatch):
    page = "# A\n\n| a |\n|---|\n| 1 |\n\n## B\n\nWords.\n\n| b |\n|---|\n| 2 |\n\n# C\n"
    (tmp_path / "page.md").write_text(page)
    monkeypatch.setattr(refresh, "ROOT", tmp_path)
    assert refresh.table("page.md B") == "| b |\n|---|\n| 2 |"
    with pytest.raises(ValueError, match="no table under the heading 'C'"):
        refresh.table("page.md C")


def test_every_module_of_common_is_listed():
    listed = set(re.findall(r"`([\w/]+\.py)`", text("common/README.md")))
    modules = {str(p.relative_to(ROOT / "common")) for p in (ROOT / "common").rglob("[!_]*.py")}
    assert listed == modules | {"__init__.py"}  # which holds `fail`


def test_the_source_is_clean():
    for words in (["check"], ["format", "--check"]):
        done = subprocess.run([sys.executable, "-m", "ruff", *words, "."], cwd=ROOT,
                              capture_output=True, text=True)  # fmt: skip
        assert done.returncode == 0, done.stdout
