"""The HTML site in a real browser. One test, in a file far from `test_site.py`: a process that has
another one would wait until the site is built."""

import re

import browser
import pytest
from machine import seconds

pytestmark = pytest.mark.slow("renders every notebook, and opens a browser")

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
    mute: images.filter((i) => !/ /.test(i.alt) || /\\.png|^No description/.test(i.alt))
      .map((i) => i.src.slice(0, 99)),
    too_wide: document.documentElement.scrollWidth - innerWidth,
    contrast: (a + 0.05) / (b + 0.05), background: luminance(style.backgroundColor),
    font: parseFloat(style.fontSize), title: document.title,
    headings: [...document.querySelectorAll("h1")].filter((h) => h.offsetParent).length,
  };
}"""


# What a reader types, also with a typing error -> the page that is about it.
FOUND = {"why NaN": "Stability", "kill worker": "Basics-Tutorial/Recovery",
         "SSP": "Stale-Synchronous-Parallel", "Hogwild!": "HogWild",
         "stragglre": "Synchronous-and-Asynchronous"}  # fmt: skip
# Both colour schemes, both widths.
LOOKS = [("light", 1280), ("dark", 390)]


def assert_every_page_looks_well(site, address, tab) -> None:
    moved = 'http-equiv="refresh"'
    pages = [path for path in sorted(site.rglob("*.html")) if moved not in path.read_text()]
    for scheme, width in LOOKS:
        tab.emulate_media(color_scheme=scheme)
        tab.set_viewport_size({"width": width, "height": 900})
        for page in pages:
            tab.goto(f"{address}/{page.relative_to(site)}")
            seen = tab.evaluate(LOOK)
            where = (page, scheme, width, seen)
            assert not seen["broken"] and not seen["mute"] and seen["too_wide"] <= 0, where
            assert seen["contrast"] > 7 and seen["font"] >= 16, where
            assert (seen["background"] > 0.5) == (scheme == "light"), where
            assert seen["title"] and seen["headings"] == 1, where


def assert_a_reader_finds_a_word_and_moves_a_slider(address, tab) -> None:
    for words, page in FOUND.items():
        tab.goto(f"{address}/index.html")
        tab.keyboard.press("Control+k")
        tab.keyboard.type(words)
        tab.keyboard.press("Enter")
        found = tab.locator(".pagefind-ui__result-inner > .pagefind-ui__result-title a")
        found.first.wait_for()
        three = [each.get_attribute("href") for each in found.all()[:3]]
        assert any(page in each for each in three), (words, three)
    nested = tab.locator(".pagefind-ui__result-nested a").first
    assert "#" in nested.get_attribute("href")  # to a section
    assert tab.inner_text("#corrected") == "Found: “straggler”."
    found.and_(tab.locator(f"[href*='{page}']")).first.click()
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


def assert_a_word_that_no_page_has_finds_nothing(address, tab) -> None:
    tab.goto(f"{address}/search.html?q=gossip")
    tab.locator("#corrected", has_text="No page has “gossip”.").wait_for()
    tab.locator(".pagefind-ui__message", has_text="No results").wait_for()


def assert_it_can_be_dark_and_has_a_menu_on_a_phone(address, tab) -> None:
    """The results of the search can be read, and the page that moves is dark, too."""
    tab.emulate_media(color_scheme="light")
    tab.goto(f"{address}/search.html?q=worker")
    tab.evaluate("document.documentElement.dataset.theme = 'dark'")
    result = tab.locator(".pagefind-ui__result-title a").first
    colour = result.evaluate("each => getComputedStyle(each).color")
    assert min(map(int, re.findall(r"\d+", colour)[:3])) > 150, colour
    tab.goto(f"{address}/index.html")
    inside = tab.locator("iframe.moving").content_frame
    inside.locator("#lead", has_text="the others wait").wait_for()
    tab.evaluate("document.documentElement.dataset.theme = 'dark'")
    inside.locator("html[data-theme=dark]").wait_for()
    tab.set_viewport_size({"width": 390, "height": 800})
    tab.locator(".header-article__inner .primary-toggle").click()
    tab.locator("dialog#pst-primary-sidebar-modal[open]").wait_for()


def assert_a_section_has_the_page_that_moves(address, tab) -> None:
    """With the settings of its case, as high as it needs, and in words."""
    tab.goto(f"{address}/Synchronous-SGD/Synchronous-SGD.html")
    frame = tab.locator("iframe.moving").first
    frame.scroll_into_view_if_needed()
    inside = frame.content_frame
    inside.locator("#words", has_text="Worker 3 takes 4 times as long").wait_for()
    tab.wait_for_function("document.querySelector('iframe.moving').style.height !== ''")
    assert 500 < frame.bounding_box()["height"] < 1200
    shown = inside.locator("#plots figure").evaluate_all(
        "all => all.map(one => one.offsetHeight > 0)"
    )
    assert shown == [True, False, False, True]
    assert "slow=1,1,1,4" in inside.locator("#whole a").get_attribute("href")


def test_a_reader_sees_every_page_and_finds_a_word(site):
    """No page complains."""
    said = []
    with browser.served(site) as address, browser.opened() as chromium:
        tab = chromium.new_page()
        tab.set_default_timeout(1e3 * seconds(60))
        tab.on("console", lambda message: message.type in ("error", "warning")
               and said.append((tab.url, message.text)))  # fmt: skip
        tab.on("pageerror", lambda error: said.append((tab.url, str(error))))
        assert_every_page_looks_well(site, address, tab)
        assert_a_reader_finds_a_word_and_moves_a_slider(address, tab)
        assert_a_section_has_the_page_that_moves(address, tab)
        assert_a_word_that_no_page_has_finds_nothing(address, tab)
        assert_it_can_be_dark_and_has_a_menu_on_a_phone(address, tab)
    assert not said
