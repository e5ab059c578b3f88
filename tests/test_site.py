"""The HTML site: complete and self-contained. A real browser: `test_browser.py`."""

import html.parser
import re
import urllib.parse
from pathlib import Path

import formulas
import make_site
import pytest
from conftest import ROOT


class Page(html.parser.HTMLParser):
    """The links and the anchors of a page, and what it loads."""

    def __init__(self, path: Path):
        super().__init__()
        self.targets, self.anchors, self.loaded, self.frames = [], set(), [], 0
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        if "id" in values:
            self.anchors.add(values["id"])
        is_link = values.get("rel") in ("next", "prev", "search", "canonical")
        if "href" in values and (tag == "a" or is_link):
            self.targets.append(values["href"])
        elif "src" in values or (tag == "link" and "href" in values):
            self.loaded.append(values.get("src") or values["href"])
        if tag == "figure" and values.get("class") == "frames":
            self.frames += 1


def test_the_site_has_every_page():
    """A README is in one place of the menu; so is each page of docs, in the README's order."""
    order = make_site.reading_order()
    assert order[0] == Path("README.md") and len(set(order)) == len(order)
    menu = [page for pages in make_site.groups().values() for page in pages]
    below = [child for page in menu for child in make_site.children(page)]
    assert sorted(menu + below) == sorted(order)
    assert list(make_site.groups())[2:5] == ["First steps", "Asynchronous", "Elastic"]
    docs = [path for path in order if path.parent == Path("docs")]
    assert docs.index(Path("docs/QUESTIONS.md")) < docs.index(Path("docs/CHANGELOG.md"))


def test_each_example_is_in_the_catalogue_with_what_it_teaches():
    catalogue = [each for examples in make_site.catalogue().values() for each in examples]
    folders = {str(page.parent) for page, _ in catalogue}
    assert folders >= set(formulas.folders()) and len(folders) == len(catalogue)
    assert all(10 < len(teaches) < 140 for _, teaches in catalogue)


@pytest.mark.parametrize(
    ("source", "target", "found"),
    [("README.md", "HogWild", "HogWild/README.md"),
     ("HogWild/README.md", "worker.py", "worker.py"),
     ("HogWild/README.md", "#run-it", "#run-it"),
     ("docs/QUESTIONS.md", "../HogWild/HogWild.ipynb#Is-there-really-no-lock?",
      "../HogWild/HogWild.ipynb#is-there-really-no-lock"),
     ("docs/QUESTIONS.md", "https://arxiv.org/abs/1#A-B", "https://arxiv.org/abs/1#A-B")],
)  # fmt: skip
def test_links_become_those_of_the_site(source, target, found):
    sources = make_site.reading_order()
    assert make_site.link(Path(source), target, sources) == found
    text = f"a [b]({target}), `[b]({target})`"
    assert make_site.markdown(text, Path(source), sources) == f"a [b]({found}), `[b]({target})`"


@pytest.mark.slow("renders every notebook")
def test_every_source_has_its_page_whose_links_lead_somewhere(site):
    """No page loads anything from another host. No formula is left as it was typed."""
    for source in make_site.reading_order():
        assert (site / source).with_suffix(".html").is_file()
    pages = {path: Page(path) for path in site.rglob("*.html")}
    known = {f"{folder}/README.html" for folder in formulas.folders()}
    assert known <= set(pages[site / "index.html"].targets)
    for path, page in pages.items():
        text = path.read_text(encoding="utf-8")
        assert len(text) < 1_000_000
        for target in page.loaded:
            file = target.partition("?")[0]
            assert target.startswith("data:") or (path.parent / file).is_file(), (path, target)
        for target in page.targets:
            if target.startswith(("https://", "data:")):
                continue
            file, _, anchor = urllib.parse.unquote(target).partition("#")
            where = (path.parent / file.partition("?")[0]).resolve() if file else path
            assert where.is_file() or (where / "index.html").is_file(), (path, target)
            known = pages[where].anchors if where in pages else set()
            assert not anchor or where.parts[-2] == make_site.MOVING or anchor in known, (
                path,
                target,
            )
        prose = re.sub(
            r'<script.*?</script>|<pre.*?</pre>|<code.*?</code>|<style.*?</style>|aria-label="[^"]*"',
            "",
            text,
            flags=re.S,
        )
        assert "$$" not in prose and not re.search(r"\\(frac|eta|tilde|alpha|[a-z]{3,})", prose), (
            path
        )


@pytest.mark.slow("renders every notebook")
def test_what_jupyterlab_folds_is_folded_here(site):
    found = 0
    for path in site.glob("**/*.html"):
        *before, _ = path.read_text(encoding="utf-8").split("warning: the servers of this notebook")
        for part in before:
            assert part.rfind("<details") > part.rfind("</details>"), path
        found += len(before)
    assert found >= 3


@pytest.mark.slow("renders every notebook")
def test_what_github_shows_as_a_slider_is_one_here(site):
    framed = sum(path.read_text().count('"frames"') for path in ROOT.glob("[!.]*/*.ipynb"))
    assert sum(Page(path).frames for path in site.rglob("*.html")) == framed > 0


@pytest.mark.slow("renders every notebook")
def test_old_addresses_lead_to_the_new_ones(site):
    for folder in ("HogWild", "Basics-Tutorial"):
        assert "README.html" in (site / folder / "index.html").read_text()
    assert "README.html" in (site / "about.html").read_text()
