"""The page of a comparison in headless Chromium: all is visible, no sideways scrolling, no network requests."""

import base64

import pytest
from test_held_out import kept, linear
from test_verdict import flat, study

from chromium import browser, needs_chromium
from unlazy.comparison.compare import Comparison
from unlazy.comparison.study.verdict import decide_verdict

pytestmark = needs_chromium
SHOWN = (
    "[...document.images].filter(i => i.complete && i.naturalWidth > 0 && i.getBoundingClientRect().width > 50).length"
)
ROWS = "[...document.querySelectorAll('table.claims tbody tr')].filter(r => r.offsetHeight > 0).length"
OUTSIDE = """[...document.querySelectorAll('body *')].filter(e => e.checkVisibility() &&
  (e.getBoundingClientRect().right > innerWidth + 1 || e.getBoundingClientRect().left < -1)).map(e => e.outerHTML)"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    found = study(flat(gaussian=0.5, laplace=0.6, feature_machine=0.1, boosting=0.2))
    found = kept(found, lambda table, rows: table.y[rows, None])
    return Comparison(found, decide_verdict(found), linear(found.table)).page(tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("profile")) as tab:
        yield tab
        assert tab.problems == []  # neither errors nor requests


@pytest.mark.parametrize("width", [390, 1200])
def test_the_page_is_complete(tab, page, width):
    tab.open(page, width=width, touch=width < 500)
    assert tab.run(SHOWN) == tab.run("document.images.length") == 5 and tab.run(ROWS) == 4 + 3
    assert tab.run("document.documentElement.scrollWidth") == width and tab.run(OUTSIDE) == []
    # the answer is on the first screen of a desk, and most of it on that of a phone
    last = "document.querySelector('.overview').getBoundingClientRect().bottom"
    assert tab.run(last) < (900 if width == 1200 else 1200)


@pytest.mark.parametrize("width", [390, 1200])
def test_hovering_shows_names_and_values(tab, page, width):
    tab.open(page, width=width)
    for picture, said in ((0, "feature machine, 1.00"), (1, "feature machine: 300 rows → 0.0")):
        marks = tab.run(f"JSON.parse(document.querySelectorAll('figure')[{picture}].dataset.marks)")
        image = f"document.querySelectorAll('figure img')[{picture}]"
        tab.run(f"{image}.scrollIntoView({{block: 'center'}})")
        box = f"(b => [b.left, b.top, b.width, b.height])({image}.getBoundingClientRect())"
        left, top, across, down = tab.run(box)
        mark = next(m for m in marks if said.startswith(f"{m[2]}: {m[3]}") or m[2].startswith(said))
        tab(
            "Input.dispatchMouseEvent",
            type="mouseMoved",
            x=left + mark[0] * across / 1000,
            y=top + mark[1] * down / 1000,
        )
        tip = f"document.querySelectorAll('.tip')[{picture}]"
        assert tab.run(f"{tip}.checkVisibility() && {tip}.textContent").startswith(said)
        assert tab.run("document.documentElement.scrollWidth") == width


def test_the_page_prints_completely(tab, page):
    """Pages of A4 at its own width: pictures fit, and what is folded on the screen is there."""
    tab.open(page)
    tab("Emulation.setEmulatedMedia", media="print")
    tab("Emulation.setDeviceMetricsOverride", width=720, height=1040, deviceScaleFactor=1, mobile=False)
    assert tab.run("document.querySelector('details p').checkVisibility({contentVisibilityAuto: true})")
    assert tab.run("document.documentElement.scrollWidth") == 720 and tab.run(OUTSIDE) == []
    pdf = base64.b64decode(tab("Page.printToPDF")["data"])
    assert pdf.startswith(b"%PDF") and 1 <= pdf.count(b"/Type /Page\n") <= 5
    tab("Emulation.setEmulatedMedia", media="")
