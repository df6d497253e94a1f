"""The page: one small self-contained file, consistent modules, a description for every control."""

import json
import re
from html.parser import HTMLParser

import pytest
from typer.testing import CliRunner

from unlazy.cli import app
from unlazy.core.errors import UnlazyError
from unlazy.lab.experiment import Record, Records
from unlazy.lab.play import grid
from unlazy.lab.play import page as play
from unlazy.lab.play.page import write_play

LIMIT = 1_500_000


class _Reader(HTMLParser):
    """Identifiers, what is described by what, controls, and tags that were never closed."""

    VOID = ("meta", "img", "br", "input", "link")

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.controls = [], [], []

    def handle_starttag(self, tag, attrs):
        known = dict(attrs)
        self.ids += [known["id"]] if "id" in known else []
        self.controls += [known] if tag == "input" else []
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def html(tmp_path_factory):
    return write_play(tmp_path_factory.mktemp("written") / "page.html").read_text("utf-8")


def test_one_whole_file_without_a_network(html):
    reader = _Reader()
    reader.feed(html)
    assert reader.open == [] and len(reader.ids) == len(set(reader.ids))
    assert len(html.encode()) < LIMIT
    assert not re.search(r"""(src|href)=|https?://|fetch\(|XMLHttpRequest|WebSocket|import\((?!"\./)""", html)


def test_every_control_has_a_description(html):
    reader = _Reader()
    reader.feed(html)
    assert len(reader.controls) > 5
    for control in reader.controls:
        why = control["aria-describedby"]
        (text,) = re.findall(rf'id="{why}">([^<]+)<', html)
        assert text.endswith(".") and len(text) > 30, control


def test_tags_of_the_stages_have_their_formulas_on_the_page(html):
    named = set(re.findall(r"\[([A-Z]\d+)\]", re.sub(r"<h3>.*?</h3>", "", html.split("<details")[0])))
    assert len(named) >= 4
    for tag in named:
        assert f"<h3>[{tag}]" in html
    assert html.count("<math") >= len(named)


def test_modules_import_only_what_stands_before_them_and_names_are_used_once():
    known, names = {}, []
    for module in play.MODULES:
        text = (play.HERE / "js" / f"{module}.js").read_text("utf-8")
        for wanted, source in re.findall(r'^import \{([^}]*)\} from "\./(\w+)\.js";', text, re.M):
            assert set(re.findall(r"\w+", wanted)) <= known[source], (module, source)
        top = re.findall(r"^(?:export )?(?:async )?(?:function|const|let|class) (\w+|[\[{][^=]*[\]}])", text, re.M)
        names += [name for found in top for name in re.findall(r"\w+", found)]
        known[module] = set(re.findall(r"^export (?:async )?(?:function|const|let|class) (\w+)", text, re.M))
    assert len(names) == len(set(names)), sorted(n for n in names if names.count(n) > 1)
    assert {f.stem for f in (play.HERE / "js").glob("*.js")} == set(play.MODULES)
    joined = play.script()
    assert not re.search(r"^(import|export)\b", joined, re.M) and "</script" not in joined


def test_the_command_opens_the_page_only_without_out(tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
    result = CliRunner().invoke(app, ["play", "--out", str(tmp_path / "new" / "p.html")])
    assert result.exit_code == 0 and (tmp_path / "new" / "p.html").exists() and opened == []
    monkeypatch.setattr("tempfile.mkdtemp", lambda prefix: str(tmp_path))
    assert CliRunner().invoke(app, ["play"]).exit_code == 0
    assert opened == [(tmp_path / "play.html").as_uri()]
    (tmp_path / "file").write_text("")
    assert CliRunner().invoke(app, ["play", "--out", str(tmp_path / "file" / "p.html")]).exit_code == 2
    with pytest.raises(UnlazyError, match="choose another"):
        write_play(tmp_path / "file" / "p.html")


def test_the_stored_risks_are_those_of_the_grid():
    kept = json.loads(grid.FILE.read_text("utf-8"))
    assert {name: kept[name] for name in ("d", "degree", "n")} == {
        name: grid.GRID[name] for name in ("d", "degree", "n")
    }
    assert kept["seeds"] == grid.SEEDS and len(kept["risks"]) == len(grid.GRID["d"]) * len(grid.GRID["degree"])
    for curves in kept["risks"].values():
        assert set(curves) == set(grid.METHODS)
        for curve in curves.values():
            assert len(curve) == len(grid.GRID["n"])
            assert all(0 < low <= middle <= high < 2 for middle, low, high in curve)


def test_a_summary_is_median_smallest_and_largest():
    rows = [
        Record({"d": 5, "degree": 3, "n": n, "method": m, "width": 8}, seed, {"risk": (seed + 1) / n})
        for n in (10, 20) for m in ("a", "b") for seed in range(3)
    ]  # fmt: skip
    found = grid.summary(Records(rows))
    assert found["risks"]["5,3"]["b"] == [[0.2, 0.1, 0.3], [0.1, 0.05, 0.15]]
    assert (found["seeds"], found["width"], found["n"]) == (3, 8, [10, 20])
