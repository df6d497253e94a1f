"""The page of a comparison in headless Chromium: everything is shown, nothing scrolls sideways, nothing is asked "
"for."""

import importlib.util
import re
from pathlib import Path

import pytest
from test_verdict import flat, study

from unlazy.comparison.compare import Comparison
from unlazy.comparison.verdict import judge

_spec = importlib.util.spec_from_file_location("report_browser", Path(__file__).parents[1] / "report/test_browser.py")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser(request):
    """The tools of the report's browser tests."""
    import sys

    sys.path.insert(0, str(Path(__file__).parents[1] / "report"))
    assert _spec is not None and _spec.loader is not None
    module = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(module)
    if module.CHROMIUM is None:
        pytest.skip("needs Chromium (apt-get install chromium)")
    return module


@pytest.fixture(scope="module")
def comparison():
    found = study(flat(gaussian=0.5, laplace=0.6, feature_machine=0.1, boosting=0.2))
    return Comparison(found, judge(found), None)


@pytest.mark.parametrize("width", [390, 1200])
def test_the_page_shows_everything(browser, comparison, tmp_path, width):
    page = comparison.page(tmp_path)
    page.write_text(page.read_text().replace("</body>", browser.PROBE + "</body>"))
    dom = browser.browse(page, tmp_path, "--dump-dom", f"--window-size={width},900")
    seen = {k: int(v) for k, v in re.findall(r'data-(\w+)="(\d+)"', dom)}
    assert seen["images"] == seen["shown"] == 3 and seen["rows"] == 4 + 3
    assert seen["asked"] == 0 and seen["wide"] <= seen["window"]
