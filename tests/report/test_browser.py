"""The page in headless Chromium: every figure and table is shown, and nothing scrolls sideways on a phone."""

import re
import shutil
import subprocess

import pytest
from test_page import EXPERIMENT, RECORDS

from unlazy.lab.report.page import write_report

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (apt-get install chromium)"),
]

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--virtual-time-budget=5000",
]  # fmt: skip
# Written into the page before it is opened: what the browser made of it, as attributes of the body.
PROBE = """<script>window.addEventListener("load", () => {
  const drawn = i => i.complete && i.naturalWidth > 0 && i.getBoundingClientRect().width > 50;
  const shown = [...document.images].filter(drawn);
  Object.assign(document.body.dataset, {images: document.images.length, shown: shown.length,
    wide: document.documentElement.scrollWidth, window: window.innerWidth,
    rows: [...document.querySelectorAll("table.claims tbody tr")].filter(r => r.offsetHeight > 0).length,
    asked: performance.getEntriesByType("resource").filter(r => r.name.startsWith("http")).length});
})</script>"""


def browse(page, folder, *flags):
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={folder / 'profile'}", *flags, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


@pytest.mark.parametrize("width", [390, 1200])
def test_the_page_is_complete(tmp_path, width):
    page = write_report([(EXPERIMENT, RECORDS)], tmp_path)
    page.write_text(page.read_text().replace("</body>", PROBE + "</body>"))
    dom = browse(page, tmp_path, "--dump-dom", f"--window-size={width},900")
    seen = {k: int(v) for k, v in re.findall(r'data-(\w+)="(\d+)"', dom)}
    assert seen["images"] == seen["shown"] == 1
    assert seen["rows"] == 1 and seen["asked"] == 0
    assert seen["wide"] <= seen["window"]


def test_screenshot_is_not_blank(tmp_path):
    from matplotlib.image import imread

    page = write_report([(EXPERIMENT, RECORDS)], tmp_path)
    browse(page, tmp_path, f"--screenshot={tmp_path / 'shot.png'}", "--window-size=900,1400")
    pixels = imread(tmp_path / "shot.png")[..., :3]
    assert pixels.shape[:2] == (1400, 900) and pixels.std() > 0.05
