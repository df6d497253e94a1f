"""The page in Chromium: keyboard, mouse, touch, links, small screens, and accessibility (axe-core)."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from chromium import needs_chromium
from unlazy.lab.play import page as play

pytestmark = needs_chromium
STAGES = [name for name, _ in play.STAGES]
TOOLS = Path(__file__).parents[2] / ".cache" / "npm" / "node_modules"
AXE = TOOLS / "axe-core" / "axe.min.js"
TSC = shutil.which("tsc") or (TOOLS / ".bin" / "tsc" if (TOOLS / ".bin" / "tsc").exists() else None)

# What a keyboard must reach: a group of radio buttons is one stop, its arrows do the rest.
STOPS = """[...document.querySelectorAll("button, input, canvas[tabindex]")].filter(e => e.checkVisibility()
  && (e.type !== "radio" || e.checked) && !(e.role === "tab" && e.tabIndex < 0))
  .map(e => e.id || e.name || e.textContent)"""
FOCUSED = "(e => e.id || e.name || e.textContent)(document.activeElement)"
DRAWN = """[...document.querySelectorAll("canvas")].filter(c => c.checkVisibility()).every(c => {
  const seen = new Set(new Uint32Array(c.getContext("2d").getImageData(0, 0, c.width, c.height).data.buffer));
  return c.width > 100 && seen.size > 3; })"""


@pytest.mark.parametrize("stage", STAGES)
def test_the_keyboard_reaches_every_control(tab, page, stage):
    tab.open(page, address=f"#stage={stage}")
    wanted, reached = tab.run(STOPS), []
    assert len(wanted) >= 5
    for _ in range(len(wanted) + 3):
        tab.key("Tab")
        reached.append(tab.run(FOCUSED))
    assert set(wanted) <= set(reached)


def test_keys_move_tabs_sliders_and_choices_and_the_address_follows(tab, page):
    tab.open(page)
    tab.run("document.getElementById('tab-rich').focus()")
    tab.key("ArrowLeft")
    assert tab.run("!document.getElementById('stage-kernel').hidden && document.activeElement.id") == "tab-kernel"
    tab.run("document.getElementById('ridge').focus()")
    for _ in range(20):
        tab.key("ArrowRight")
    tab.run("document.querySelector('input[value=gaussian]').focus()")
    tab.key("ArrowRight")
    tab.run("new Promise(done => setTimeout(done, 400))")
    said = tab.run("Object.fromEntries(new URLSearchParams(location.hash.slice(1)))")
    assert said == {"stage": "kernel", "ridge": "-5", "kernel": "laplace"}
    assert tab.run("document.getElementById('ridge').getAttribute('aria-valuetext')") == "10⁻⁵"


POINTS = "unlazy.stages.kernel.points.map(p => [p.x, p.y])"
PLACE = """(([x, y]) => { const p = unlazy.stages.kernel.function, b = p.canvas.getBoundingClientRect();
  return [b.left + p.left(x), b.top + p.top(y)]; })"""


@pytest.mark.parametrize("hand", ["mouse", "finger"])
def test_points_are_placed_dragged_and_removed(tab, page, hand):
    tab.open(page, touch=hand == "finger", address="#stage=kernel&points=none")
    do = tab.press if hand == "mouse" else tab.touch
    start, end, outside = (tab.run(f"{PLACE}({json.dumps(at)})") for at in ([-1, 1], [1.5, -0.5], [1.5, 3.4]))
    do(*start)
    tab.frames()
    assert tab.run(POINTS) == [[pytest.approx(-1, abs=0.02), pytest.approx(1, abs=0.02)]]
    do(*start, end)
    tab.frames()
    assert tab.run(POINTS) == [[pytest.approx(1.5, abs=0.02), pytest.approx(-0.5, abs=0.02)]]
    do(*end, outside)
    tab.frames()
    assert tab.run(POINTS) == []


def test_points_by_keys(tab, page):
    tab.open(page, address="#stage=kernel&points=none")
    tab.run("document.getElementById('kernel-function').focus()")
    for key in ("ArrowRight", "ArrowUp", "Enter"):
        tab.key(key)
    assert tab.run(POINTS) == [[pytest.approx(0.15), pytest.approx(0.125)]]
    for key in ("Enter", "ArrowUp", "Enter"):  # take it up, move it, put it down
        tab.key(key)
    assert tab.run(POINTS) == [[pytest.approx(0.15), pytest.approx(0.25)]]
    tab.key("Delete")
    assert tab.run(POINTS) == []


def test_a_link_restores_the_settings(tab, page):
    address = "#stage=kernel&points=-1,0.5;0.25,1&kernel=ntk&depth=4&time=1.5&paths=0"
    tab.open(page, address=address)
    assert tab.run(POINTS) == [[-1, 0.5], [0.25, 1]]
    set_to = "['depth', 'time', 'paths'].map(i => document.getElementById(i)).map(e => [e.value, e.checked])"
    assert tab.run(set_to) == [["4", False], ["1.5", False], ["on", False]]
    assert tab.run("document.querySelector('input[name=kernel]:checked').value") == "ntk"
    tab.run("document.getElementById('time').dispatchEvent(new Event('input', {bubbles: true}))")
    tab.run("new Promise(done => setTimeout(done, 400))")
    before, after = ({*a.lstrip("#").split("&")} for a in (address, tab.run("decodeURIComponent(location.hash)")))
    assert before == after
    tab.open(page, address="#stage=nowhere&width=banana&kernel=none&points=a,b")  # a broken link is no broken page
    assert tab.run("unlazy.stages.rich.training.setting.width") in (64, 128)


def test_the_network_leaves_its_kernel_by_itself_and_stays_when_lazy(tab, page):
    """The initial page shows feature learning; at the lazy end of the dial there is none."""
    tab.open(page, still=False)
    tab.frames(150)
    training = "unlazy.stages.rich.training"
    assert tab.run(f"{training}.drift") > 0.5
    assert tab.run("document.getElementById('rich-say').textContent") == "Rich: the network has left its kernel."
    steps = tab.run(f"{training}.steps")
    tab.run("""(e => { e.value = e.min; e.dispatchEvent(new Event("input", {bubbles: true})) })(
      document.getElementById("richness"))""")
    tab.run(f"""(async () => {{ await new Promise(requestAnimationFrame); await new Promise(requestAnimationFrame);
      while ({training}.steps < {steps}) await new Promise(requestAnimationFrame); }})()""")
    tab.frames(8)
    assert tab.run(f"{training}.drift") < 0.1


@pytest.mark.parametrize("width", [360, 390, 1200])
def test_every_stage_fits_the_screen(tab, page, width):
    for stage in STAGES:
        tab.open(page, width, 800, dark=width == 390, address=f"#stage={stage}")
        tab.frames(3)
        wide, window = tab.run("[document.documentElement.scrollWidth, innerWidth]")
        assert wide <= window
        assert tab.run(DRAWN), stage


@pytest.mark.skipif(not AXE.exists(), reason="needs axe-core (make browser-tools)")
@pytest.mark.parametrize("dark", [False, True])
def test_axe_finds_nothing_serious(tab, page, dark):
    for stage in STAGES:
        tab.open(page, dark=dark, address=f"#stage={stage}")
        tab.run(AXE.read_text("utf-8") + "; 0")
        found = tab.run("axe.run().then(r => r.violations.map(v => [v.id, v.impact, v.nodes.map(n => n.html)]))")
        assert [v for v in found if v[1] in ("serious", "critical")] == [], stage


@pytest.mark.skipif(TSC is None, reason="needs TypeScript (make browser-tools)")
def test_the_scripts_are_typed():
    done = subprocess.run([str(TSC), "-p", play.HERE / "js"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
