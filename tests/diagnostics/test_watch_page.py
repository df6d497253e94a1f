"""The page of a record: one offline file with the verdict, the advice, all measures, all layers and the rules."""

import base64
import re
import subprocess
import sys
from dataclasses import replace
from html import unescape

import pytest
from sample_records import STEPS, growing, with_kernel_machine

from unlazy import Monitor
from unlazy.core.errors import UnlazyError
from unlazy.diagnostics import Check, LayerCheck, Record, write_page
from unlazy.diagnostics.report import figures, page
from unlazy.diagnostics.report.figures import PANELS, layer_panels, measure_plots
from unlazy.diagnostics.report.page import page_title


@pytest.fixture(scope="module")
def html(tmp_path_factory):
    return Monitor(growing()).page(tmp_path_factory.mktemp("page") / "run.html").read_text("utf-8")


def words(html):
    return " ".join(unescape(re.sub(r"<(style|script)>.*?</\1>|<[^>]*>", " ", html, flags=re.DOTALL)).split())


def test_the_page_says_everything(html):
    record = growing()
    text = words(html)
    assert f"<h1>{page_title(record)}</h1>" in html and str(record.verdict) in text
    for word, chance in record.verdict.forecast.probabilities.items():
        assert f"{word} {chance:.0%}" in text
    assert "Cost of the checks 2.1% of the training time" in text and "2.3 at initialization, 1.3 at step 100" in text
    assert "scale the output: train f 0 + α ( f - f 0 )" in text.replace("Scale", "scale")
    # the last check with its standard errors; that of the alignment is relative
    assert "linearization gap 0.3 ± 0.02 100 share of the change" in text
    assert "kernel movement 0.4 ± 0.03 100" in text and "alignment with labels 0.2 ± 0.01 100" in text
    assert (
        "block1.conv learned features 0.4" not in text and "block1.conv has moved a little 0.4 0.05 0.9 3 → 4" in text
    )
    assert "readout readout 0.6" in text
    assert (
        "Lazy below 0.2, rich above 0.6" in text and "exact on 64 probe points" in text and "learning rate 0.1" in text
    )
    assert "kernel failed at step 120: <b>" in text and "step 120: <b>" not in html  # escaped
    assert re.findall(r"<h3>(\w+) · ", html) == ["W1", "W2", "W3", "W4", "W5", "W6", "T1"]


def test_the_page_needs_no_network(html):
    assert re.findall(r"""(?:src|href)=["'](?!data:|#)([^"']*)""", html) == []
    assert "@import" not in html and "url(" not in html


def test_every_measure_has_a_picture_with_its_values_in_words(html):
    pictures = re.findall(r'<img alt="([^"]*)" src="data:image/png;base64,([^"]*)"', html)
    assert len(pictures) == 6 + 1 and all(base64.b64decode(data).startswith(b"\x89PNG") for _, data in pictures)
    alts = " ".join(unescape(alt) for alt, _ in pictures)
    for said in ("linearization gap: 0.0671 at step 5, 0.3 at step 100.", "Forecast for step 200", "loss: 2.08",
                 "movement: 0.0894", "kernel with labels: 0.2", "change of the outputs: 0.224",
                 "sharpness × step size: 0.447", "Layer 1 (block0.conv), outputs: 0.0447"):  # fmt: skip
        assert said in alts


def test_marks_give_the_values_of_a_plot():
    (gap, *_) = measure_plots(growing())
    (line, *_) = [l for l in gap.figure.axes[0].lines if l.get_label() == "linearization gap"]
    assert list(line.get_xdata()) == list(STEPS) and line.get_ydata()[-1] == pytest.approx(0.3)


def test_titles_follow_the_verdict():
    titles = {}
    for gap in (0.01, 0.3, 0.9):
        for planned in (None, 100, 150):
            record = growing(planned=planned, last_gap=gap)
            titles[record.verdict.word, planned] = page_title(record)
    assert titles["lazy", 100] == titles["lazy", None] == "This run is lazy: a kernel machine"
    assert titles["rich", 100] == "This run is rich: it learns features"
    assert titles["rich", 150] == "This run is heading for the rich regime"
    assert page_title(Record()) == page_title(growing(planned=10_000)) == "Too early to say"
    broken = growing(last_gap=1.5)
    assert page_title(replace(broken, initial_loss=1.3)) == "This run is broken"


def test_layers_share_axes():
    drawings = layer_panels(growing(layers=9))
    assert [len([a for a in d.figure.axes if a.get_visible()]) for d in drawings] == [PANELS, 3]
    assert len({axes.get_ylim() for d in drawings for axes in d.figure.axes}) == 1
    assert drawings[0].figure.axes[0].get_title(loc="left") == "1 (block0.conv)"
    assert drawings[-1].figure.axes[2].get_title(loc="left") == "readout (readout)"


@pytest.mark.slow
def test_many_layers_are_thinned(tmp_path, monkeypatch):
    for module in (figures, page):
        monkeypatch.setattr(module, "MAX_PANELS", 4)
    record = growing(layers=30)
    record = replace(record, checks=record.checks[-1:])
    html = write_page(record, tmp_path / "many.html").read_text("utf-8")
    alt = "".join(re.findall(r'<img alt="(Layer[^"]*)"', html))
    assert re.findall(r"Layer (\w+)", alt) == ["1", "11", "20", "readout"]
    assert "4 of 30 layers are drawn" in words(html) and html.count("<td>block") == 29


@pytest.mark.parametrize(
    "record",
    [
        Record(), Record((Check(0, points=8),)), Record((Check(1, points=8, gap=0.1, change=1.0),)),
        Record((Check(3, points=8, change=float("inf"), loss=0.0, gap=0.0),), planned_steps=3),
        Record((Check(3, points=8, gap=0.1, change=1.0, layers={"<$a_b^c$>": LayerCheck(0.0, 0.0, 1.0)}),)),
        Record((Check(2, points=8, gap=0.1, change=1.0, layers={"a": LayerCheck(float("inf"))}),)),
    ],
)  # fmt: skip
def test_poor_records_have_a_page(record, tmp_path):
    html = write_page(record, tmp_path / "page.html").read_text("utf-8")
    assert page_title(record) in html and "nan" not in words(html)
    assert ("Last check" in words(html)) == any(c.gap >= 0 for c in record.checks)


@pytest.mark.slow
def test_the_kernel_beside_the_network_is_on_the_page(tmp_path):
    record = with_kernel_machine()
    assert str(record.kernel_machine) in words(write_page(record, tmp_path / "page.html").read_text("utf-8"))


def test_errors_name_the_file(tmp_path):
    with pytest.raises(UnlazyError, match=r"cannot write the page to .*none/page.html: No such file"):
        Monitor(Record()).page(tmp_path / "none" / "page.html")
    with pytest.raises(UnlazyError, match=r"none.json cannot be read: No such file"):
        write_page(tmp_path / "none.json", tmp_path / "page.html")


@pytest.mark.slow
def test_a_page_needs_no_jax(tmp_path):
    path = growing(layers=2).save(tmp_path / "run.json")
    code = (
        "import sys; from unlazy.diagnostics import write_page; write_page(*sys.argv[1:]); print('jax' in sys.modules)"
    )
    command = [sys.executable, "-c", code, path, tmp_path / "page.html"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False\n"
