"""The HTML site: complete, self-contained, and readable in a real browser."""

import functools
import html.parser
import http.server
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import threading
import urllib.parse
from pathlib import Path

import formulas
import make_site
import pytest
from conftest import ROOT, environment
from machine import seconds

slow = pytest.mark.slow("renders every notebook, and opens a browser")

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)

# Opens every page in a frame of each width and records what is wrong with it.
CHECKER = """<!DOCTYPE html><title>check</title><body><script>
const pages = %s, widths = %s, found = [];
const luminance = (css) => {
  const [r, g, b] = css.match(/[\\d.]+/g).slice(0, 3).map((c) => {
    c /= 255; return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
async function check(page, width) {
  const frame = document.createElement("iframe");
  frame.style = `border:0;width:${width}px;height:900px`;
  frame.src = page;
  document.body.append(frame);
  await new Promise((done) => frame.onload = done);
  const inside = frame.contentDocument, style = frame.contentWindow.getComputedStyle(inside.body);
  const broken = [...inside.images].filter((i) => !i.naturalWidth).map((i) => i.src.slice(0, 99));
  const [a, b] = [style.color, style.backgroundColor].map(luminance).sort((x, y) => y - x);
  found.push({page, width, broken, too_wide: inside.documentElement.scrollWidth - width,
              contrast: (a + 0.05) / (b + 0.05), background: luminance(style.backgroundColor),
              font: parseFloat(style.fontSize), title: inside.title,
              headings: inside.querySelectorAll("h1").length});
  frame.remove();
}
(async () => {
  for (const page of pages) for (const width of widths) await check(page, width);
  await fetch("/found", {method: "POST", body: JSON.stringify(found)});
})();
</script>"""


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
        assert not re.search(r"<script|@import|url\(", text), path
        prose = re.sub(
            r'<pre.*?</pre>|<code.*?</code>|<style.*?</style>|aria-label="[^"]*"',
            "",
            text,
            flags=re.S,
        )
        assert "$$" not in prose and not re.search(r"\\(frac|eta|tilde|alpha)", prose), path


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves the site, and receives the checker's findings."""

    def do_POST(self):
        text = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(204)
        self.end_headers()
        self.server.found.put(json.loads(text))

    def log_message(self, *_):
        pass


@pytest.fixture
def server(site):
    """A server for this test, on a free port of this machine."""
    handler = functools.partial(Handler, directory=str(site))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.found = queue.Queue()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@slow
@pytest.mark.skipif(not CHROMIUM, reason="no Chromium here (Debian: apt install chromium)")
@pytest.mark.parametrize(("scheme", "widths"), [("light", (1280, 390)), ("dark", (1280,))])
def test_a_browser_shows_every_page_well(site, server, scheme, widths, tmp_path):
    pages = sorted(str(path.relative_to(site)) for path in site.rglob("*.html"))
    (site / "check.html").write_text(CHECKER % (json.dumps(pages), json.dumps(widths)))
    said = tmp_path / "said.txt"
    with said.open("w") as stderr:
        browser = subprocess.Popen(
            [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             "--disable-crash-reporter", "--disable-dev-shm-usage", "--no-first-run",
             "--remote-debugging-port=0", f"--user-data-dir={tmp_path}/profile",
             "--enable-logging=stderr", "--window-size=1300,950",
             f"--blink-settings=preferredColorScheme={int(scheme == 'light')}",
             f"http://127.0.0.1:{server.server_port}/check.html"],
            stdout=subprocess.DEVNULL, stderr=stderr, env=environment(), start_new_session=True,
        )  # fmt: skip
    try:
        found = server.found.get(timeout=seconds(90))
    finally:
        os.killpg(browser.pid, signal.SIGKILL)
        browser.wait()
        (site / "check.html").unlink()
    complaints = [line for line in said.read_text().splitlines() if "CONSOLE" in line]
    assert not complaints
    assert len(found) == len(pages) * len(widths)
    for seen in found:
        assert not seen["broken"] and seen["too_wide"] <= 0, seen
        assert seen["contrast"] > 7 and seen["font"] >= 16, seen
        assert (seen["background"] > 0.5) == (scheme == "light"), seen
        assert seen["title"] and seen["headings"] == 1, seen
