"""One browser for all tests of the page."""

import pytest

from chromium import browser
from unlazy.lab.play.page import write_play


@pytest.fixture(scope="session")
def page(tmp_path_factory):
    return write_play(tmp_path_factory.mktemp("play") / "page.html")


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("profile")) as tab:
        yield tab


@pytest.fixture
def tab(chromium):
    chromium.problems.clear()
    yield chromium
    assert chromium.problems == []
