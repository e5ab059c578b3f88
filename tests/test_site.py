"""The HTML site: complete, self-contained, and readable in a real browser."""

import functools
import html.parser
import http.server
import re
import subprocess
import threading
import urllib.parse
from pathlib import Path

import browser
import formulas
import make_site
import pytest
from conftest import ROOT, environment
from machine import seconds

slow = pytest.mark.slow("renders every notebook, and opens a browser")

# What a reader might see wrong on a page.
LOOK = """() => {
  const luminance = (css) => {
    const [r, g, b] = css.match(/[\\d.]+/g).slice(0, 3).map((c) => {
      c /= 255; return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const style = getComputedStyle(document.body);
  const [a, b] = [style.color, style.backgroundColor].map(luminance).sort((x, y) => y - x);
  const images = [...document.images];
  return {
    broken: images.filter((i) => !i.naturalWidth).map((i) => i.src.slice(0, 99)),
    mute: images.filter((i) => !i.closest(".card") && /^$|^No description/.test(i.alt))
      .map((i) => i.src.slice(0, 99)),
    too_wide: document.documentElement.scrollWidth - innerWidth,
    contrast: (a + 0.05) / (b + 0.05), background: luminance(style.backgroundColor),
    font: parseFloat(style.fontSize), title: document.title,
    headings: document.querySelectorAll("h1").length,
  };
}"""


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


@pytest.fixture(scope="module")
def site(once) -> Path:
    def make(folder):
        done = subprocess.run(["bash", str(ROOT / "site.sh"), str(folder)], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              env=environment(), check=False)  # fmt: skip
        assert done.returncode == 0, done.stdout

    return once("site", make)


@pytest.mark.parametrize("source", make_site.reading_order(), ids=str)
def test_every_formula_can_be_drawn(source):
    make_site.load(source)


def test_the_site_has_every_page_of_the_root():
    order = make_site.reading_order()
    assert order[0] == Path("README.md")
    for path in ROOT.glob("*.md"):
        assert order.count(Path(path.name)) == 1, path.name
    titles = [make_site.title_of(source) for source in order if source.parent == Path()]
    assert len(set(titles)) == len(titles)


@slow
def test_every_source_has_its_page_whose_links_lead_somewhere(site):
    """One test, since the process with a second one would wait until the site is built. No page
    loads anything."""
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


@pytest.fixture
def address(site):
    """Where a server of this test serves the site."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    handler = functools.partial(Handler, directory=str(site))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def window(address):
    """Opens a page of the site: `window(page)`; no page may complain."""
    said = []
    with browser.opened() as chromium:

        def show(page: str):
            tab = chromium.new_page()
            tab.set_default_timeout(1e3 * seconds(60))
            tab.on("console", lambda message: said.append((page, message.text)))
            tab.on("pageerror", lambda error: said.append((page, str(error))))
            tab.goto(f"{address}/{page}")
            return tab

        yield show
    assert not said


LOOKS = [("light", 1280), ("light", 390), ("dark", 1280), ("dark", 390)]


@slow
def test_a_browser_shows_every_page_well(site, address, window):
    tab = window("index.html")
    for page in sorted(str(path.relative_to(site)) for path in site.rglob("*.html")):
        tab.goto(f"{address}/{page}")
        for scheme, width in LOOKS:
            tab.emulate_media(color_scheme=scheme)
            tab.set_viewport_size({"width": width, "height": 900})
            seen = tab.evaluate(LOOK)
            where = (page, scheme, width, seen)
            assert not seen["broken"] and not seen["mute"] and seen["too_wide"] <= 0, where
            assert seen["contrast"] > 7 and seen["font"] >= 16, where
            assert (seen["background"] > 0.5) == (scheme == "light"), where
            assert seen["title"] and seen["headings"] == 1, where


@slow
def test_a_reader_finds_a_word_and_moves_a_slider(site, window):
    tab = window("index.html")
    tab.get_by_role("searchbox").fill("straggler")
    tab.keyboard.press("Enter")
    found = tab.locator("#search a", has_text="Synchronous and asynchronous").first
    found.click()
    tab.wait_for_url("**/Synchronous-and-Asynchronous.html*")
    figure = tab.locator("figure.frames").first
    slider, image = figure.get_by_role("slider"), figure.get_by_role("img")
    before = (
        image.evaluate("i => getComputedStyle(i).transform"),
        figure.locator("output").inner_text(),
    )
    slider.focus()
    tab.keyboard.press("ArrowRight")
    after = (
        image.evaluate("i => getComputedStyle(i).transform"),
        figure.locator("output").inner_text(),
    )
    assert before[0] != after[0] and before[1] != after[1]
