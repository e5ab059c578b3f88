"""Turns the READMEs, the pages in docs/ and the notebooks into a static HTML site.
`build/site.sh` runs it.

Every page is self-contained: it contains its style and formulas, and loads nothing. Only the search
page loads something: the index that Pagefind makes of all pages, and Pagefind's own script.
"""

import base64
import functools
import html
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import navigation
import nbformat
import notebooks
from matplotlib.font_manager import FontProperties
from matplotlib.mathtext import MathTextParser
from matplotlib.textpath import TextPath
from nbconvert import HTMLExporter
from pygments.formatters import HtmlFormatter

ROOT = Path(__file__).resolve().parents[1]
TUTORIAL = "Basics-Tutorial"
CONTENT = "@content@"  # where the content goes in the frame
FENCE = re.compile(r"(```.*?```|`[^`\n]*`)", re.S)
MATH = re.compile(r"\$\$(.+?)\$\$|\$(?!\s)([^$\n]+?)(?<!\s)\$(?!\d)", re.S)


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
    order += [path.relative_to(ROOT) for path in sorted(ROOT.glob("Several-Machines/*.md"))]
    order += [path.relative_to(ROOT) for path in pages()]
    order += notebooks.everything()
    return list(dict.fromkeys(path for path in order if (ROOT / path).exists()))


def page_of(source: Path) -> Path:
    """Where a source's page is on the site."""
    if source.name == "README.md":
        return source.with_name("index.html") if source.parent.name else Path("about.html")
    return source.with_suffix(".html")


@functools.cache
def formula(tex: str, display: bool) -> str:
    """A formula as an inline SVG in the colour of the text around it.

    Raises:
        ValueError: if Matplotlib does not know a command.
    """
    tex = re.sub(r"\\frac(\w)(\w)", r"\\frac{\1}{\2}", " ".join(tex.split()))
    tex = tex.replace(r"\text{", r"\mathrm{").replace(r"\mathrm{ ", r"\ \mathrm{")
    tex = re.sub(r"\\mathrm{[^}]*}", lambda m: m[0].replace(" ", r"\ "), tex)
    font = FontProperties(math_fontfamily="cm", size=16)
    width, height, depth, _, _ = MathTextParser("path").parse(f"${tex}$", 72, font)
    parts = []
    for points, code in TextPath((0, 0), f"${tex}$", prop=font).iter_segments(simplify=False):
        pairs = " ".join(f"{x:.2f} {height - depth - y:.2f}" for x, y in points.reshape(-1, 2))
        parts.append({1: "M", 2: "L", 3: "Q", 4: "C"}[code] + pairs if code < 79 else "Z")
    kind = "formula display" if display else "formula"
    return (
        f'<svg class="{kind}" role="img" aria-label="{html.escape(tex)}" '
        f'viewBox="0 0 {width:.1f} {height:.1f}" style="width:{width / 14.5:.2f}em;'
        f'height:{height / 14.5:.2f}em;vertical-align:{-depth / 14.5:.2f}em">'
        f'<path d="{"".join(parts)}" fill="currentColor"/></svg>'
    )


def with_formulas(markdown: str) -> str:
    """Draws the formulas outside of code."""

    def draw(match):
        if match[1]:
            return f'\n\n<div class="scroll">{formula(match[1], True)}</div>\n\n'
        return formula(match[2], False)

    parts = FENCE.split(markdown)
    return "".join(p if i % 2 else MATH.sub(draw, p) for i, p in enumerate(parts))


def load(source: Path) -> nbformat.NotebookNode:
    """A notebook, or a page as a notebook of one cell, with its formulas drawn."""
    text = (ROOT / source).read_text(encoding="utf-8")
    if source.suffix == ".md":
        text = re.sub(r"<!--.*?-->\n?", "", text, flags=re.S)
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(text)])
    else:
        notebook = nbformat.reads(text, as_version=4)
        # The site has its own links to the neighbours.
        notebook.cells = [cell for cell in notebook.cells if not navigation.is_navigation(cell)]
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = with_formulas(cell.source)
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "frames" in output.get("metadata", {}).get("image/png", {}):
                output.data = {"text/html": framed(output)}
                data = output.data
            if "text/markdown" in data:
                data["text/markdown"] = with_formulas(data["text/markdown"])
    return notebook


def framed(output: nbformat.NotebookNode) -> str:
    """A grid of frames, as HTML that shows one at a time with a slider; without scripts, all."""
    about = output.metadata["image/png"]
    values = html.escape("|".join(about["frames"]["labels"]))
    return (
        f'<figure class="frames" data-columns="{about["frames"]["columns"]}" '
        f'data-labels="{values}"><div>'
        f'<img width="{about["width"]}" alt="{html.escape(about["alt"])}" '
        f'src="data:image/png;base64,{output.data["image/png"].strip()}"></div></figure>'
    )


def title_of(source: Path) -> str:
    """A page's title; that of a walk-through says so, since its README has the same one."""
    text = (ROOT / source).read_text(encoding="utf-8")
    found = re.search(r'^\s*"?# (.+?)(?:\\n",?)?$', text, re.M)
    title = found[1].replace("`", "") if found else source.stem
    walk = source.suffix == ".ipynb" and source.stem == source.parent.name
    return f"{title}: notebook" if walk else title


def contents(body: str) -> str:
    """Links to a page's headings of the second and third level."""
    found = re.findall(r'<h([23]) id="([^"]*)">(.*?)</h\1>', body, re.S)
    if len(found) < 3:
        return ""
    lines = [f'<a class="level{level}" href="#{place}">{re.sub(r"<[^>]+>", "", text)}</a>'
             for level, place, text in found]  # fmt: skip
    links = "".join(lines)
    return f'<details class="contents"><summary>On this page</summary>{links}</details>'


def anchor(heading: str, source: Path) -> str:
    """The anchor that GitHub gives a heading; those of a notebook are Jupyter's."""
    if source.suffix == ".md":
        heading = re.sub(r"[^\w -]", "", heading.lower())
    return heading.strip().replace(" ", "-")


class Site:
    """The pages, their links, and the folder for them."""

    def __init__(self, target: Path):
        self.target, self.sources = target, reading_order()
        self.exporter = HTMLExporter(
            template_name="web", extra_template_basedirs=[str(ROOT / "build")],
            exclude_anchor_links=True, exclude_input_prompt=True, exclude_output_prompt=True,
        )  # fmt: skip
        # It removes what a stranger's notebook might contain; here it would only take time.
        self.exporter.register_filter("clean_html", lambda ours: ours)
        light, dark = HtmlFormatter(style="default"), HtmlFormatter(style="github-dark")
        css = (ROOT / "build" / "web" / "style.css").read_text()
        self.script = (ROOT / "build" / "web" / "frames.js").read_text()
        rules = [f.get_style_defs(".highlight") for f in (light, dark)]
        self.css = f"{css}\n{rules[0]}\n@media (prefers-color-scheme: dark) {{\n{rules[1]}\n}}\n"

    def link(self, source: Path, target: str) -> str:
        """Translates a source's link for its page; copies the target if it has no page."""
        file, _, place = target.partition("#")
        if "://" in target or not file or target.startswith(("mailto:", "data:")):
            return target
        path = Path(os.path.normpath(source.parent / file))
        if (ROOT / path).is_dir():
            path = path / "README.md"
        if path in self.sources:
            goal = page_of(path)
        elif not (ROOT / path).exists():
            return target  # a test finds it
        else:
            goal = path if path.suffix else path.with_suffix(".txt")
            (self.target / goal).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, self.target / goal)
        there = os.path.relpath(goal, page_of(source).parent)
        return there + (f"#{place}" if place else "")

    def write(self, page: Path, body: str, **around) -> None:
        """Writes a page: its content inside the frame that the notebook template provides."""
        home = os.path.relpath("index.html", page.parent)
        search = os.path.relpath("search.html", page.parent)
        frame = {"css": self.css, "script": self.script, "home": home, "search": search}
        # nbconvert parses all HTML that it makes. The content is already parsed, so it is put in
        # afterwards.
        resources = {"site": {**frame, "body": CONTENT, **around}}
        text, _ = self.exporter.from_notebook_node(nbformat.v4.new_notebook(), resources)
        before, after = text.split(CONTENT)
        (self.target / page).parent.mkdir(parents=True, exist_ok=True)
        (self.target / page).write_text(before + body + after, encoding="utf-8")

    def body(self, source: Path) -> str:
        """The content of a page, with GitHub's anchors and the site's links."""
        text, _ = self.exporter.from_notebook_node(load(source), {"site": {"bare": True}})

        def heading(match):
            plain = html.unescape(re.sub(r"<[^>]+>", "", match[2]))
            own = html.escape(anchor(plain, source))
            return f'<h{match[1]} id="{own}">{match[2]}</h{match[1]}>'

        def target(match):
            return f'{match[1]}="{html.escape(self.link(source, html.unescape(match[2])))}"'

        text = re.sub(r"<h([1-6])[^>]*>(.*?)</h\1>", heading, text, flags=re.S)
        text = re.sub(r'\b(href|src)="([^"]*)"', target, text)
        return re.sub(r"(<table.*?</table>)", r'<div class="scroll">\1</div>', text, flags=re.S)

    def make(self) -> None:
        """Writes the index and all pages."""
        self.write(Path("index.html"), self.index(), title="Distributed TensorFlow, by example")
        for i, source in enumerate(self.sources):
            page = page_of(source)
            before, after = (
                self._neighbour(page, j) if 0 <= j < len(self.sources) else None
                for j in (i - 1, i + 1)
            )
            body = self.body(source)
            self.write(page, body, title=title_of(source), before=before, after=after,
                       contents=contents(body), frames='class="frames"' in body)  # fmt: skip
        search = (ROOT / "build" / "web" / "search.html").read_text()
        self.write(Path("search.html"), search, title="Search")

    def _neighbour(self, page: Path, j: int) -> dict:
        there = os.path.relpath(page_of(self.sources[j]), page.parent)
        return {"href": there, "title": title_of(self.sources[j])}

    def index(self) -> str:
        """Cards with pictures: the tutorial's notebooks, then the examples."""
        tutorial = [s for s in self.sources if s.parts[0] == TUTORIAL and s.suffix == ".ipynb"]
        examples = [s for s in self.sources if (ROOT / s.parent / "run.sh").exists()]
        examples = [s for s in examples if s.name == "README.md" and s.parent.name != ""]
        lead = re.search(r"\n\n(.+?)\n\n", (ROOT / "README.md").read_text(), re.S)[1]
        lead = lead.replace("`", "")
        parts = [f'<h1>Distributed TensorFlow, by example</h1><p class="lead">{html.escape(lead)}',
                 '</p><p><a class="button" href="about.html">Start here</a></p>']  # fmt: skip
        for heading, sources in (("Notebooks", tutorial), ("Examples", examples)):
            if sources:
                cards = "".join(self.card(source) for source in sources)
                parts.append(f'<h2>{heading}</h2><div class="cards">{cards}</div>')
        return "".join(parts)

    def card(self, source: Path) -> str:
        text = (ROOT / source).read_text(encoding="utf-8")
        picture = self.target / page_of(source).with_suffix(".png")
        picture.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".ipynb":
            notebook = nbformat.reads(text, as_version=4)
            text = "\n\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")
            images = [output.data["image/png"] for cell in notebook.cells
                      for output in cell.get("outputs", [])
                      if "image/png" in output.get("data", {})]  # fmt: skip
            picture.write_bytes(base64.b64decode(images[0]))
        else:
            drawn = (ROOT / source).with_name("curves.png")
            picture = picture.with_name("curves.png")  # where the README's own link puts it
            if drawn.exists():
                shutil.copy(drawn, picture)
            else:
                picture = None
        words = re.search(r"^# .*?\n\n(.+?)(?:\n\n|\Z)", text, re.S | re.M)[1]
        words = re.split(r"(?<=[.?!])\s|:\s", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", words))[0]
        words = re.sub(r"[*`]", "", words).replace("\n", " ").rstrip(".:") + "."
        href = page_of(source)
        image = f'<img src="{picture.relative_to(self.target)}" alt="">' if picture else ""
        return (
            f'<a class="card" href="{href}">{image}'
            f"<strong>{html.escape(title_of(source))}</strong><span>{html.escape(words)}</span></a>"
        )


def main() -> None:
    """`make_site.py [FOLDER]`: replaces the folder, by default `site/`."""
    target = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "site").resolve()
    if target.exists() and not (target / "index.html").exists() and any(target.iterdir()):
        sys.exit(f"error: {target} holds other files: name another folder")
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    site = Site(target)
    site.make()
    command = [sys.executable, "-m", "pagefind", "--site", str(target), "--silent"]
    subprocess.run(command, check=True)
    print(f"{len(site.sources) + 2} pages: open {target / 'index.html'}")
    print(f"With search: python3 -m http.server --directory {target}")


if __name__ == "__main__":
    main()
