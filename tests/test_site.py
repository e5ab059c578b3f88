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
    """The links and the anchors of a page."""

    def __init__(self, path: Path):
        super().__init__()
        self.targets, self.anchors, self.loaded = [], set(), []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        if "id" in values:
            self.anchors.add(values["id"])
        if tag == "a" and "href" in values:
            self.targets.append(values["href"])
        elif "src" in values or (tag == "link" and "href" in values):
            self.loaded.append(values.get("src") or values["href"])


@pytest.mark.parametrize("source", make_site.reading_order(), ids=str)
def test_every_formula_can_be_drawn(source):
    make_site.load(source)


def test_the_site_has_every_page_of_docs():
    order = make_site.reading_order()
    assert order[0] == Path("README.md")
    for path in ROOT.glob("docs/*.md"):
        assert order.count(path.relative_to(ROOT)) == 1, path.name
    titles = [make_site.title_of(source) for source in order if source.parent == Path("docs")]
    assert len(set(titles)) == len(titles)


@pytest.mark.slow("renders every notebook")
def test_every_source_has_its_page_whose_links_lead_somewhere(site):
    """No page loads anything."""
    for source in make_site.reading_order():
        assert (site / make_site.page_of(source)).is_file()
    index = (site / "index.html").read_text()
    for folder in formulas.folders():
        assert f'href="{folder}/index.html"' in index, folder
    pages = {path: Page(path) for path in site.rglob("*.html")}
    for path, page in pages.items():
        for target in page.loaded:
            assert target.startswith("data:") or (path.parent / target).is_file(), (path, target)
        for target in page.targets:
            if target.startswith("https://"):
                continue
            file, _, anchor = urllib.parse.unquote(target).partition("#")
            where = (path.parent / file).resolve() if file else path
            assert where.is_file(), (path, target)
            assert not anchor or anchor in pages[where].anchors, (path, target)
        text = path.read_text()
        if path.name != "search.html":
            scripts = len(re.findall(r"<script", text))
            assert scripts == ('class="frames"' in text), path
            assert not re.search(r"<script [^>]*src|@import|url\(", text), path
        prose = re.sub(
            r'<script>.*?</script>|<pre.*?</pre>|<code.*?</code>|<style.*?</style>|aria-label="[^"]*"',
            "",
            text,
            flags=re.S,
        )
        assert "$$" not in prose and not re.search(r"\\(frac|eta|tilde|alpha)", prose), path
