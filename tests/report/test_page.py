"""The page is self-contained and complete, also for unfinished sweeps and malicious names."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from unlazy.core.errors import UnlazyError
from unlazy.lab.claims import at_most, consistent, interval_claim, within
from unlazy.lab.experiment import Experiment, Record, Records, config
from unlazy.lab.report.export import export
from unlazy.lab.report.page import write_report
from unlazy.lab.report.table import print_claims, summary


def _figure(records):
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots()
    axes.plot(*records.over("n", "risk"), "o-")
    axes.set(xlabel="n", ylabel="risk")
    return figure


def _claims(records):
    return [at_most("risk < 1 & falls", "K2", float(records.where(n=20).measure("risk")[0]), 1.0)]


EXPERIMENT = Experiment(
    name="toy", source="S1", tags=("K2",), question="Is <1> & 2?", prediction="yes", protocol="none",
    verdict="risk at most 1", trial=lambda params, key: {}, claims=_claims, figure=_figure,
    quick=config({"n": [10, 20]}, seeds=2), full=config({"n": [10, 20]}, seeds=2),
)  # fmt: skip
RECORDS = Records(
    Record({"n": n, "name": "a<b"}, seed, {"risk": 1.0 / n, "curve": np.arange(3.0)})
    for n in (10, 20)
    for seed in (0, 1)
)


class _Balance(HTMLParser):
    """Collects tags that were opened and never closed."""

    VOID = ("meta", "img", "br", "link", "input")

    def __init__(self):
        super().__init__()
        self.open, self.images = [], 0

    def handle_starttag(self, tag, attrs):
        self.images += tag == "img"
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_page_is_complete_and_needs_no_network(tmp_path):
    page = write_report([(EXPERIMENT, RECORDS)], tmp_path)
    html = page.read_text()
    parser = _Balance()
    parser.feed(html)
    assert parser.open == [] and parser.images == 1
    assert "Is &lt;1&gt; &amp; 2?" in html and "a&lt;b" in html
    assert not re.search(r'(src|href)="(https?:)?//', html)
    assert (tmp_path / "figures/toy.png").stat().st_size > 1000 and (tmp_path / "figures/toy.pdf").exists()


def test_a_partial_sweep_is_reported_as_partial(tmp_path):
    html = write_report([(EXPERIMENT, RECORDS.where(n=10))], tmp_path).read_text()
    assert "not enough to evaluate" in html or "undecided" in html
    assert "Not run yet." in write_report([(EXPERIMENT, Records())], tmp_path).read_text()


def test_unwritable_folder_gives_a_one_line_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UnlazyError, match="choose another"):
        write_report([(EXPERIMENT, RECORDS)], tmp_path / "file" / "below")


def test_claims_table_counts_and_escapes(capsys):
    claims = [
        within("[bold] is not markup", "K1", 1.0, 0.0, 2.0),
        consistent("far off", "K2", 1.0, 5.0, 0.1),
        at_most("straddles", "K3", 1.0, 1.1, error=0.2),
    ]
    print_claims([(EXPERIMENT, claims)])
    out = capsys.readouterr().out
    assert "[bold]" in out and "✗" in out
    assert summary(claims) == "1 of 3 claims hold, 1 does not, 1 undecided."


def test_a_verdict_whose_interval_crosses_the_bound_is_marked(tmp_path, capsys):
    crossing = interval_claim("risk", "A1", 0.5, 0.4, 1.2, True, "≤ 0.8", "95%")
    print_claims([(EXPERIMENT, [crossing])])
    out = " ".join(capsys.readouterr().out.split())
    assert "barely" in out and "chosen" in out and "1 of 1 claims hold (1 barely)." in out
    page = write_report([(replace(EXPERIMENT, claims=lambda records: [crossing]), RECORDS)], tmp_path)
    html = page.read_text()
    assert "holds, barely: its interval crosses the bound" in html and "bound chosen before the run" in html
    assert 'href="#A1"' in html and 'id="A1"' in html and "<math" in html


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_export_round_trip(tmp_path, suffix):
    import pandas as pd

    path = tmp_path / f"out.{suffix}"
    export(RECORDS, path)
    frame = pd.read_csv(path) if suffix == "csv" else pd.read_parquet(path)
    assert list(frame["risk"]) == [0.1, 0.1, 0.05, 0.05] and "curve" not in frame
    with pytest.raises(ValueError, match="parquet"):
        export(RECORDS, tmp_path / "out.xlsx")
    with pytest.raises(UnlazyError, match="run it first"):
        export(Records(), path)


def test_text_that_begins_like_a_formula_is_plain_in_csv(tmp_path):
    import pandas as pd

    texts = ["=1+1", "+1+1", "-1+1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "plain", "-1.5", "a=b"]
    rows = [Record({"=what": t, "n": -i}, 0, {"value": -0.5}) for i, t in enumerate(texts)]
    export(Records(rows), tmp_path / "out.csv")
    back = pd.read_csv(tmp_path / "out.csv", dtype={"'=what": str}, lineterminator="\n")
    assert list(back["'=what"]) == [*(f"'{t}" for t in texts[:7]), *texts[7:]]
    assert list(back["n"]) == [-i for i in range(10)] and set(back["value"]) == {-0.5}
    export(Records(rows), tmp_path / "out.parquet")  # no spreadsheet opens it: as it is
    assert list(pd.read_parquet(tmp_path / "out.parquet")["=what"]) == texts


def test_predicted_text_that_begins_like_a_formula_is_plain(monkeypatch, tmp_path):
    import pandas as pd
    from typer.testing import CliRunner

    from unlazy.cli import app
    from unlazy.comparison.study import model

    found = pd.DataFrame({"@label": ["=cmd", "fine"], "probability =cmd": [0.5, 0.25]})
    monkeypatch.setattr(model, "predict_file", lambda *given: found)
    result = CliRunner().invoke(app, ["predict", "model", "data"])
    assert result.stdout.splitlines() == ["'@label,probability =cmd", "'=cmd,0.5", "fine,0.25"]
