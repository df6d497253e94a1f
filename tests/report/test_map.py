"""The map has every experiment once, under one question; the user's own verdicts come before recorded ones."""

import re
from collections import Counter
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from unlazy.core.errors import UnlazyError
from unlazy.lab.claims import at_most
from unlazy.lab.report.map import USER_QUESTION, layout, map_questions, write_map
from unlazy.lab.report.recorded_claims import FOLDER, ClaimSummary, record, recorded, summarize_claim
from unlazy.lab.runner.catalog import all_experiments

CLAIM = at_most("risk < 1 & falls", "K2", 2.0, 1.0)


def test_every_experiment_belongs_to_one_question():
    parts, known = layout(), {e.name for e in all_experiments()}
    placed = Counter(name for q in parts["question"] for name in q["experiments"])
    assert set(placed) == known
    assert set(placed.values()) == {1}
    kinds = Counter(name for c in parts["category"] for name in c["experiments"])
    assert set(kinds) <= known
    assert set(kinds.values()) == {1}


def test_recorded_claims_belong_to_an_experiment():
    names = {path.stem for path in FOLDER.glob("*.json")}
    assert names == {e.name for e in all_experiments()}
    for name in names:
        claims, how = recorded(name)
        assert claims and "trials" in how
        assert all(c.verdict in ("holds", "does not hold", "undecided") and c.basis_text for c in claims)


def test_a_record_contains_every_field_of_a_claim():
    kept = record([CLAIM], "quick", 3)
    assert kept["trials"] == 3
    expected = ClaimSummary("risk < 1 & falls", "≤ 1", "2", "does not hold", "does not hold", "chosen")
    assert ClaimSummary(**kept["claims"][0]) == summarize_claim(CLAIM) == expected


def test_own_measurements_come_before_recorded_ones():
    found = {
        p.experiment.name: p for _, places in map_questions(all_experiments(), {"transfer": [CLAIM]}) for p in places
    }
    assert found["transfer"].claims == [summarize_claim(CLAIM)]
    assert found["transfer"].origin == "Measured here."
    assert found["transfer"].signs == [("does not hold", "✕", "risk < 1 & falls: does not hold")]
    assert found["wide_limit"].claims == recorded("wide_limit")[0]
    assert "Recorded by the project" in found["wide_limit"].origin


def test_user_experiments_are_listed(tmp_path):
    own = replace(all_experiments()[0], name="mine")
    last, places = map_questions([own], {})[-1]
    assert last["name"] == USER_QUESTION["name"]
    assert places[0].count == "not run yet"
    assert USER_QUESTION["experiments"] == []  # the pattern is left as it was
    page = write_map([own, *all_experiments()], {"mine": [CLAIM]}, tmp_path).read_text(encoding="utf-8")
    assert "0 of 1 hold" in page and "risk &lt; 1 &amp; falls" in page
    links = set(re.findall(r'href="#([^"]+)"', page))
    assert links <= set(re.findall(r'id="([^"]+)"', page)), "tags lead to their formulas"
    assert "http" not in page.replace("http://www.w3.org", "")


def test_the_map_links_to_a_report_in_the_same_folder(tmp_path):
    (tmp_path / "report.html").write_text("")
    page = write_map(all_experiments(), {"transfer": [CLAIM]}, tmp_path).read_text(encoding="utf-8")
    assert 'href="report.html#transfer"' in page and 'href="report.html#wide_limit"' not in page


def test_the_command(tmp_path):
    from unlazy.cli import app

    said = CliRunner().invoke(app, ["map", "--store", str(tmp_path / "none"), "--out", str(tmp_path)])
    assert said.exit_code == 0, said.output
    assert f"0 of {len(all_experiments())} experiments from your store" in said.output
    assert (tmp_path / "map.html").exists() and not (tmp_path / "none").exists()


def test_an_output_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UnlazyError, match="choose another folder with --out"):
        write_map([], {}, tmp_path / "file")
