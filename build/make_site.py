"""Turns the READMEs, the pages in docs/ and the notebooks into a static HTML site, with Sphinx and
MyST-NB. `build/site.sh` runs it.

It copies the sources to a folder, as Sphinx wants them: with a list of all pages in the groups of
the README, links that lead to pages, and outputs that a browser shows. `build/web` has Sphinx's
settings, the front page and the style. Pagefind makes the index for the search.
"""

import base64
import collections
import functools
import hashlib
import html
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import navigation
import nbformat
import notebooks
import overview

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))
from common.page import write  # noqa: E402

WEB = ROOT / "build" / "web"
TUTORIAL = "Basics-Tutorial"
MOVING = "who-waits"  # where the page that simulates runs is on the site
MENU = {"README.md": "How to begin", f"{TUTORIAL}/README.md": "Contents"}  # else: the page's title
FOLDED = {"source_hidden": "hide-input", "outputs_hidden": "hide-output"}  # JupyterLab -> MyST-NB
FENCE = re.compile(r"(```.*?```|`[^`\n]*`)", re.S)
CASE = re.compile(r"\[([^\]]+)\]\([^)\s]*common/page/README\.md#([\w-]+)\)")
PLAY = re.compile(rf"^Try it in the browser: {CASE.pattern}\.$", re.M)
WORD = re.compile(r"[a-z][a-z0-9]+")
SECTION = re.compile(r'<section( [^>]*)? id="([^"]+)">((?:\s*<span id="[^"]*"></span>)*\s*<h[1-6])')
LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")


def links(markdown: str) -> list[str]:
    """The targets of a text's links, in order, ignoring code blocks."""
    return re.findall(r"\]\(([^)\s#]+)", re.sub(r"```.*?```", "", markdown, flags=re.S))


def pages() -> list[Path]:
    """The pages in docs/, in the order in which the root README links to them."""
    named = [ROOT / target for target in links((ROOT / "README.md").read_text())]
    found = sorted(ROOT.glob("docs/*.md"))
    return sorted(found, key=lambda p: named.index(p) if p in named else len(named))


def reading_order() -> list[Path]:
    """Every page's source below the root: the notebooks in the order of the tutorial's README, each
    example's README before its notebook, then the pages in docs/."""
    order = [Path("README.md"), Path("Scoreboard.md"), Path(TUTORIAL, "README.md")]
    for path in navigation.order():
        if (ROOT / path.parent / "run.sh").exists():
            order.append(path.parent / "README.md")
        order.append(path)
    order += [path.relative_to(ROOT) for path in sorted(ROOT.glob("[!.]*/README.md"))]
    order += [path.relative_to(ROOT) for path in pages()]
    order += [path.relative_to(ROOT) for path in sorted(ROOT.glob("[!.]*/*.md"))]
    order += [Path("common/page/README.md"), *notebooks.everything()]
    return list(dict.fromkeys(path for path in order if (ROOT / path).exists()))


def section(heading: str) -> str:
    """What stands below a heading of the root README, without comments."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"<!--.*?-->", "", text, flags=re.S)
    return text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0].strip()


def catalogue() -> dict[str, list[tuple[Path, str]]]:
    """The README's groups of examples: each one's README, and what it teaches."""
    found = {}
    for part in section("The examples").split("\n### ")[1:]:
        title = part.partition("\n")[0].partition(":")[0]
        rows = re.findall(r"^\| \[[^\]]+\]\(([^)]+)\).*? \| (.*?) \|", part, re.M)
        found[title] = [(Path(target), teaches) for target, teaches in rows]
    return found


def groups() -> dict[str, list[Path]]:
    """The pages of the menu by its headings: the tutorial, the README's groups, the rest. Below an
    example stand the notebooks of its folder."""
    order = reading_order()
    found = {"Start": [Path("README.md"), Path("Scoreboard.md"), Path("docs/QUESTIONS.md")]}
    found["Tutorial"] = [path for path in order if str(path.parent) == TUTORIAL]
    for title, examples in catalogue().items():
        found[title] = [page_ for page_, _ in examples]
    named = {page for pages_ in found.values() for page in pages_}
    rest = [path for path in order if path.suffix == ".md" and path not in named]
    below = {child for path in [*named, *rest] for child in children(path)}
    return found | {"Reference": [path for path in rest if path not in below]}


def children(page: Path) -> list[Path]:
    """What stands below a page in the menu."""
    beside = [path for path in reading_order() if path.parent == page.parent and path != page]
    if page.name != "README.md" or page.parent.name in ("", TUTORIAL, "docs"):
        beside = []
    if page == Path(TUTORIAL, "Multiple-Workers.ipynb"):
        beside = [path for path in reading_order() if path.parent == page.with_suffix("")]
    return beside


def tree(pages_: list[Path], folder: Path, caption: str = "") -> str:
    """Sphinx's list of pages; it is not shown in the text."""
    lines = []
    for each in pages_:
        where = os.path.relpath(each.with_suffix(""), folder)
        # These have the same title as the page above them.
        name = "Notebook" if each.stem == each.parent.name else MENU.get(str(each))
        lines.append(f"{name} <{where}>" if name else where)
    head = [":hidden:", *([f":caption: {caption}"] if caption else [])]
    return "\n".join(["```{toctree}", *head, *lines, "```"])


def slug(heading: str) -> str:
    """The anchor of a heading, on GitHub and here."""
    return re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-")


def anchor(heading: str, source: Path) -> str:
    """The anchor that a link in a source has: that of GitHub; in a notebook, that of Jupyter."""
    return slug(heading) if source.suffix == ".md" else heading.strip().replace(" ", "-")


def link(source: Path, target: str, sources: list[Path]) -> str:
    """Translates a source's link: a folder means its README; all anchors are `slug`s."""
    file, _, place = target.partition("#")
    if "://" in target or target.startswith(("mailto:", "data:")):
        return target
    if file and (ROOT / source.parent / file).is_dir():
        file = os.path.join(file, "README.md")
    path = Path(os.path.normpath(source.parent / file)) if file else source
    if path.suffix == ".ipynb" and path in sources:
        place = slug(place.replace("-", " ")) if place else ""
    return file + (f"#{place}" if place else "")


@functools.cache
def cases() -> dict[str, str]:
    """Of the page that moves: each case's anchor in its README, and its settings."""
    text = (ROOT / "common/page/cases.js").read_text(encoding="utf-8")
    return {slug(title): found for title, found in re.findall(r'\["(.+?)", "(#.+?)"', text)}


def played(match: re.Match, source: Path) -> str:
    """A link to one of these cases, as one to the page itself."""
    there = os.path.relpath(Path(MOVING, "index.html"), source.parent)
    return f'<a href="{there}{html.escape(cases()[match[2]])}">{match[1]}</a>'


def markdown(text: str, source: Path, sources: list[Path]) -> str:
    """A text's links, translated, outside of code."""
    root = os.path.relpath(".", source.parent) + "/"
    text = PLAY.sub(lambda match: f"{match[0]}\n\n{frame(root, cases()[match[2]])}", text)
    text = CASE.sub(lambda match: played(match, source), text)
    parts = FENCE.split(text)
    return "".join(part if k % 2 else LINK.sub(lambda m: link(source, m[1], sources), part)
                   for k, part in enumerate(parts))  # fmt: skip


def page(source: Path, sources: list[Path]) -> str:
    """A README or another page."""
    text = re.sub(r"<!--.*?-->\n?", "", (ROOT / source).read_text(encoding="utf-8"), flags=re.S)
    text = re.sub(r"^\[!\[.*\n\n", "", text, flags=re.M)  # badges, which only GitHub has
    text = markdown(text, source, sources)
    if source == Path("common/page/README.md"):
        title, rest = text.split("\n\n", 1)
        text = f"{title}\n\n{frame('../../')}\n\n{rest}"
    if below := children(source):
        text += f"\n\n{tree(below, source.parent)}\n"
    return text


def notebook(source: Path, sources: list[Path], pictures: Path) -> nbformat.NotebookNode:
    """A notebook without its own links to the neighbours, which the site has, too. Its pictures are
    written into the folder `pictures`."""
    found = nbformat.read(ROOT / source, as_version=4)
    found.cells = [cell for cell in found.cells if not navigation.is_navigation(cell)]
    for cell in found.cells:
        if cell.cell_type == "markdown":
            cell.source = markdown(cell.source, source, sources)
        else:
            hidden = cell.metadata.get("jupyter", {})
            folded = [tag for key, tag in FOLDED.items() if hidden.get(key)]
            cell.metadata["tags"] = [*cell.metadata.get("tags", []), *folded]
        for output in cell.get("outputs", []):
            about = output.get("metadata", {}).get("image/png", {})
            if "frames" in about:
                output["data"] = {"text/html": framed(output["data"]["image/png"], about)}
            elif about:
                png = base64.b64decode(output["data"]["image/png"])
                output["data"] = {"text/html": pictured(png, about, source, pictures)}
            if "run" in output.get("metadata", {}):
                output["data"] = {
                    "text/html": write.framed(json.loads(output["metadata"].pop("run")))
                }
            if "text/markdown" in output.get("data", {}):
                data = output["data"]
                data["text/markdown"] = markdown(data["text/markdown"], source, sources)
    if below := children(source):
        found.cells.append(nbformat.v4.new_markdown_cell(tree(below, source.parent)))
    return found


def pictured(png: bytes, about: dict, source: Path, pictures: Path) -> str:
    """A picture with its description, which MyST-NB would leave out. On a phone, it scrolls."""
    name = f"{hashlib.sha256(png).hexdigest()[:16]}.png"
    (pictures / name).write_bytes(png)
    there = os.path.relpath(Path(pictures.name, name), source.parent)
    return (f'<div class="picture"><img src="{there}" width="{about["width"]}" '
            f'alt="{html.escape(about["alt"])}"></div>')  # fmt: skip


def framed(png: str, about: dict) -> str:
    """A grid of frames, as HTML that shows one at a time with a slider; without scripts, all."""
    values = html.escape("|".join(about["frames"]["labels"]))
    return (
        f'<figure class="frames" data-columns="{about["frames"]["columns"]}" '
        f'data-labels="{values}"><div><img width="{about["width"]}" '
        f'alt="{html.escape(about["alt"])}" src="data:image/png;base64,{png.strip()}"></div>'
        "</figure>"
    )


def frame(root: str, settings: str = "") -> str:
    """The page that moves, in another page; with the settings of a case, the plots too. `root`: the
    way to the site's first page."""
    what = f"plots{html.escape(settings)}" if settings else ""
    return (
        f'<iframe class="moving" loading="lazy" src="{root}{MOVING}/index.html?frame={what}" '
        'title="Who waits? A simulated run that you can change"></iframe>'
    )


def front(sources: list[Path]) -> str:
    """The front page: the page that moves, the three ways through, the catalogue, and the menu."""
    lead = re.search(r"^Learn .+?\n\n", (ROOT / "README.md").read_text(), re.S | re.M)[0]
    parts = ["# Distributed TensorFlow, by example", lead.replace("`", ""),
             frame(""), overview.table("."),
             "## Three ways through",
             section("Three ways through").partition("\n\n")[2]]  # fmt: skip
    for title, examples in catalogue().items():
        cards = [f":::{{grid-item-card}} {page_.parent}\n:link: {page_.with_suffix('')}\n"
                 f":link-type: doc\n\n{teaches}\n:::" for page_, teaches in examples]  # fmt: skip
        parts += [f"## {title}", "::::{grid} 1 2 3 3\n:gutter: 2\n", *cards, "::::"]
    parts += [tree(pages_, Path(), caption) for caption, pages_ in groups().items()]
    return markdown("\n\n".join(parts), Path("README.md"), sources)


def stage(folder: Path) -> list[Path]:
    """Writes the sources for Sphinx. Returns them."""
    sources, pictures = reading_order(), folder / "_pictures"
    pictures.mkdir()
    (folder / "index.md").write_text(front(sources), encoding="utf-8")
    for source in sources:
        there = folder / source
        there.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".md":
            text = page(source, sources)
        else:
            text = json.dumps(notebook(source, sources, pictures))
        there.write_text(text, encoding="utf-8")
        for target in links((ROOT / source).read_text(encoding="utf-8")):
            file = Path(os.path.normpath(source.parent / target))
            if (ROOT / file).is_file() and file not in sources:
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / file, folder / file)
    return sources


def words(folder: Path) -> list[str]:
    """The words of the staged pages, the most frequent first: for a search with a typo."""
    found = collections.Counter()
    for path in folder.rglob("*.md"):
        found.update(re.findall(WORD, path.read_text(encoding="utf-8").lower()))
    for path in folder.rglob("*.ipynb"):
        for cell in nbformat.read(path, as_version=4).cells:
            if cell.cell_type == "markdown":
                found.update(re.findall(WORD, cell.source.lower()))
    return [word for word, _ in found.most_common()]


def found_by_section(page: Path, is_notebook: bool) -> None:
    """Changes a finished page so that the search leads to its sections: the address of one is that
    of its heading. A notebook says that it is one, as its README has the same title."""
    text = page.read_text(encoding="utf-8")
    text = SECTION.sub(r'<section\1>\3 id="\2"', text)
    if is_notebook:
        title = re.search(r'<h1 id="[^"]*">(.*?)<a', text, re.S)[1]
        title = html.escape(html.unescape(re.sub(r"<[^>]+>", "", title)))
        text = text.replace('<h1 id="', f'<h1 data-pagefind-meta="title[content]" '
                            f'content="{title} (notebook)" id="', 1)  # fmt: skip
    page.write_text(text, encoding="utf-8")


def moving(folder: Path) -> None:
    """Copies the page that simulates runs; its links lead to the site's pages."""
    shutil.copytree(
        ROOT / "common" / "page", folder, ignore=shutil.ignore_patterns("*.py", "run*", "__*")
    )
    text = (folder / "index.html").read_text(encoding="utf-8")
    text = text.replace('data-root="../../"', 'data-root="../" data-pages="html"')
    text = re.sub(r'href="\.\./\.\./([^"]*)\.(?:md|ipynb)"', r'href="../\1.html"', text)
    (folder / "index.html").write_text(text, encoding="utf-8")


def main() -> None:
    """`make_site.py [FOLDER]`: replaces the folder, by default `site/`."""
    target = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "site").resolve()
    if target.exists() and not (target / "index.html").exists() and any(target.iterdir()):
        sys.exit(f"error: {target} holds other files: name another folder")
    shutil.rmtree(target, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        sources = stage(Path(folder))
        command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-j", "auto",
                   "-c", WEB, "-b", "html", folder, target]  # fmt: skip
        subprocess.run(command, check=True)
        shutil.copytree(Path(folder, "_pictures"), target / "_pictures")
        (target / "words.json").write_text(json.dumps(words(Path(folder))))
    for source in sources:
        found_by_section((target / source).with_suffix(".html"), source.suffix == ".ipynb")
    moving(target / MOVING)
    command = [sys.executable, "-m", "pagefind", "--site", str(target), "--silent",
               "--root-selector", "article", "--exclude-selectors", ".headerlink"]  # fmt: skip
    subprocess.run(command, check=True)
    for name in (
        ".doctrees",
        ".buildinfo",
        "objects.inv",
        "_static/webpack-macros.html",
        "_static/sbt-webpack-macros.html",
    ):
        path = target / name
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
    print(f"{len(sources) + 2} pages: open {target / 'index.html'}")
    print(f"With search: python3 -m http.server --directory {target}")


if __name__ == "__main__":
    main()
