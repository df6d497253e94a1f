"""Records: JSON round trip, tables, damaged files."""

import json
import math

import numpy as np
import pytest
from sample_records import growing

from unlazy import Monitor
from unlazy.core.errors import UnlazyError
from unlazy.diagnostics.figure import NAMED
from unlazy.diagnostics.measures.kernel_machine import KernelMachine
from unlazy.diagnostics.record import Check, LayerCheck, Record


@pytest.fixture
def record():
    layers = {"first": LayerCheck(0.1, 0.2, 0.9, 3.0, 2.0), "last/w": LayerCheck(math.inf)}
    checks = (
        Check(10, 1.0, 0.1, 64, 0.05, 0.01, 0.5, 1.0, 0.3, layers=layers),
        Check(100, 9.0, 0.1, 64, 0.3, 0.01, 1.5, 0.5, 0.2, 0.4, 0.01, 0.1, 0.01, sharpness=20.0, stability=2.0),
    )
    machine = KernelMachine(64, 0.3, 0.2, 1000, 0.2, 0.1, 0.3)
    return Record(checks, 200, 0.1, 1.2, 120, 0.02, ("last/w",), 2.0, 3.0, machine, ("a note",))


def test_json_round_trip(record, tmp_path):
    path = Monitor(record).save(tmp_path / "run.json")
    found = Monitor.load(path)
    # NaN differs from itself: compare texts
    assert repr(found.record) == repr(record)
    assert json.loads(path.read_text())["checks"][0]["layers"]["last/w"]["parameters"] == "Infinity"
    assert str(found) == str(Monitor(record)) and repr(found) == repr(Monitor(record))


def test_a_loaded_monitor_takes_no_checks(record):
    monitor = Monitor(record)
    for act in (monitor.step, monitor.check, lambda: monitor.update({})):
        with pytest.raises(ValueError, match="loaded from a file and has no network"):
            act()


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", '{"format": "unlazy.monitor", "version": 99}', '{"format": "unlazy.monitor", "version": 1}',
        '{"format": "unlazy.monitor", "version": 1, "checks": [{"step": 1, "points": 1, "layers": {}, "evil": 3}]}',
        '{"format": "unlazy.monitor", "version": 1, "checks": [{"step": 1, "points": 1, "layers": {}, "gap": "x"}]}',
    ],
)  # fmt: skip
def test_other_files_are_refused(text, tmp_path):
    path = tmp_path / "run.json"
    path.write_text(text)
    with pytest.raises(UnlazyError, match=r"run\.json"):
        Monitor.load(path)
    with pytest.raises(UnlazyError, match="nowhere"):
        Monitor.load(tmp_path / "nowhere.json")


def test_frame_has_a_row_per_check_and_a_column_per_measure(record):
    frame = record.frame()
    assert list(frame["step"]) == [10, 100]
    assert frame["first/movement"].tolist()[0] == 0.2 and np.isnan(frame["first/movement"][1])
    assert np.isnan(frame["kernel_movement"][0]) and frame["kernel_movement"][1] == 0.4
    assert "richness" not in frame  # never measured


def test_a_second_check_of_a_step_replaces_the_first(record):
    again = record.with_check(Check(100, gap=0.7, points=64))
    assert len(again.checks) == 2 and again.checks[-1].gap == 0.7


def test_layers_of_the_output_are_no_features(record):
    assert record.layer_movements == {"first": 0.2}


def test_text_and_html(record):
    monitor = Monitor(record)
    lines = repr(monitor).splitlines()
    assert lines[0] == str(monitor)
    head = next(line for line in lines if line.startswith("step"))
    assert head.split() == ["step", "gap", "change", "loss", "kernel", "λ", "×", "step"]
    assert any(line.split()[:2] == ["first", "0.1"] for line in lines)
    assert "Note: a note" in repr(monitor)
    page = monitor._repr_html_()
    assert page.count("<table>") == 2 and "<td>0.3</td>" in page
    # it takes the colors of the page: no color of its own but a transparent gray
    assert "color:inherit" in page and "#" not in page
    named = Record((Check(1, points=8, gap=0.1, change=1.0, layers={"<script>": LayerCheck(1.0)}),))
    assert "<script>" not in Monitor(named)._repr_html_()


def test_long_runs_are_shortened():
    record = Record(tuple(Check(i, points=8, gap=0.1, change=1.0) for i in range(1, 101)))
    words = [line.split() for line in repr(Monitor(record)).splitlines() if line]
    steps = [line[0] for line in words if line[0].isdigit()]
    assert len(steps) <= 10 and "1" in steps and "100" in steps


def test_figure_draws_every_measure(record):
    figure = Monitor(record).figure()
    titles = [axes.get_title() for axes in figure.axes]
    assert len(titles) == 4 and "linearization gap" in titles
    assert figure.axes[0].lines and figure.axes[1].lines and figure.axes[2].lines and figure.axes[3].lines
    figure.draw_without_rendering()
    assert figure.axes[0].get_ylim()[1] < 1  # gaps of 0.3
    many = Monitor(growing(layers=40, last_gap=1.4)).figure()
    assert many.axes[0].get_ylim()[1] > 1.4 and many.axes[0].get_ylim()[0] == 0  # gaps above 1 are not cut off
    assert len(many.axes[3].lines) == 39
    names = [text.get_text() for text in many.axes[3].get_legend().get_texts()]
    assert len(names) == NAMED and names[0] == "block0.conv" and names[-1] == "block38.conv"
    Monitor(Record()).figure().draw_without_rendering()  # nothing measured yet
