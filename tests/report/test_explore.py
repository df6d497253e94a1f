"""The report in Chromium: values on hover, claims filtered by word and verdict, dark mode."""

import json
from pathlib import Path

import pytest
from test_page import EXPERIMENT, RECORDS

from chromium import browser, needs_chromium
from unlazy.lab.report.page import write_report

pytestmark = needs_chromium
AXE = Path(__file__).parents[2] / ".cache" / "npm" / "node_modules" / "axe-core" / "axe.min.js"


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    page = write_report([(EXPERIMENT, RECORDS)], tmp_path_factory.mktemp("report"))
    with browser(tmp_path_factory.mktemp("profile")) as tab:
        tab.open(page, dark=True)
        yield tab
        assert tab.problems == []


def find(tab, words="", verdict=""):
    """Type and choose; the sections, claims and words that are then shown."""
    tab.run(f"""(() => {{ for (const [id, value] of {json.dumps([["find", words], ["verdict", verdict]])})
      {{ const e = document.getElementById(id); e.value = value; e.dispatchEvent(new Event("input")); }} }})()""")
    shown = "[...document.querySelectorAll('{}')].filter(e => e.checkVisibility()).length"
    found = [tab.run(shown.format(s)) for s in ("section", "table.claims tbody tr")]
    return [*found, tab.run("document.getElementById('found').textContent")]


def test_claims_are_found_by_words_and_verdict(tab):
    assert find(tab) == [1, 1, ""]
    assert find(tab, "RISK falls") == [1, 1, ""]
    assert find(tab, "toy", "holds") == [1, 1, ""]
    assert find(tab, "", "does not hold") == [0, 0, "0 of 1 claims"]
    assert find(tab, "nowhere to be found") == [0, 0, "0 of 1 claims"]
    assert find(tab) == [1, 1, ""]


def test_hovering_shows_values(tab):
    marks = tab.run("JSON.parse(document.querySelector('figure').dataset.marks)")
    assert [m[3:] for m in marks] == [["10", "0.1"], ["20", "0.05"]]
    box = "(b => [b.left, b.top, b.width, b.height])(document.querySelector('img').getBoundingClientRect())"
    tab.run("document.querySelector('img').scrollIntoView()")
    left, top, width, height = tab.run(box)
    x, y = left + marks[1][0] * width / 1000, top + marks[1][1] * height / 1000
    tab("Input.dispatchMouseEvent", type="mouseMoved", x=x + 3, y=y - 3)
    assert (
        tab.run("document.querySelector('.tip').checkVisibility() && document.querySelector('.tip').textContent")
        == "20 → 0.05 (2 seeds) · claim 1"
    )
    assert tab.run("document.querySelectorAll('tr.pointed').length") == 1
    tab("Input.dispatchMouseEvent", type="mouseMoved", x=left + width / 2, y=top + 5)
    assert not tab.run("document.querySelector('.tip').checkVisibility()")
    assert tab.run("document.querySelectorAll('tr.pointed').length") == 0


def test_tags_link_to_typeset_formulas(tab):
    assert tab.run("document.querySelector('td .tag a').getAttribute('href')") == "#K2"
    tab.run("document.querySelector('td .tag a').click()")
    assert tab.run("document.querySelector(':target').id") == "K2"
    # a browser that sets MathML makes the raised exponent smaller than its base
    assert tab.run("document.querySelector('#K2 math msup').getBoundingClientRect().height") > 0
    size = "parseFloat(getComputedStyle(document.querySelector('#K2 math msup > *:nth-child({})')).fontSize)"
    assert tab.run(size.format(2)) < tab.run(size.format(1))


@pytest.mark.skipif(not AXE.exists(), reason="needs axe-core (make browser-tools)")
def test_axe_finds_nothing_serious(tab):
    tab.run(AXE.read_text("utf-8") + "; 0")
    found = tab.run("axe.run().then(r => r.violations.map(v => [v.id, v.impact, v.nodes.map(n => n.html)]))")
    assert [v for v in found if v[1] in ("serious", "critical")] == []


def test_dark_pages_are_dark(tab):
    assert tab.run("getComputedStyle(document.body).backgroundColor") == "rgb(22, 24, 27)"
