"""`unlazy watch`: what a monitor saved, in the terminal, as JSON and as a page."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from sample_records import growing
from typer.testing import CliRunner

from unlazy.cli import app


@pytest.fixture(autouse=True)
def somewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    growing().save("run.json")


def watch(*arguments):
    return CliRunner().invoke(app, ["watch", *arguments])


def test_verdict_tables_advice_and_notes():
    result = watch("run.json")
    record, said = growing(), " ".join(result.stdout.split())
    assert result.exit_code == 0 and said.startswith(str(record.verdict))
    assert "100 0.3 1 1.3 0.4 0.2 0.3 2" in said and "block1.conv 0.05 0.4 0.9 4" in said
    assert " ".join(str(record.advise()).split()) in said
    assert "Note: kernel failed at step 120: <b>" in said


def test_advice_for_a_requested_gap():
    said = " ".join(watch("run.json", "--target-gap", "0.05").stdout.split())
    assert " ".join(str(growing().advise(0.05)).split()) in said and "For a linearization gap of 0.05" in said


def test_json_for_programs():
    result = watch("run.json", "--json", "-")
    found, record = json.loads(result.stdout), growing()
    assert found["verdict"]["word"] == record.verdict.word and found["verdict"]["text"] == str(record.verdict)
    assert found["verdict"]["forecast"]["probabilities"] == dict(record.verdict.forecast.probabilities)
    assert [lever["name"] for lever in found["advice"]["levers"]] == [lever.name for lever in record.advise().levers]
    assert found["last_check"]["gap"] == 0.3 and found["last_check"]["layers"]["readout"]["parameters"] == 0.05
    assert found["planned_steps"] == 200 and found["overhead"] == 0.021
    assert watch("run.json", "--json", "found.json").exit_code == 0
    assert json.loads(Path("found.json").read_text("utf-8")) == found


@pytest.mark.slow
def test_a_page_is_written():
    result = watch("run.json", "--out", "page.html")
    assert result.exit_code == 0 and result.stdout.endswith("Page: page.html\n")
    assert Path("page.html").read_text("utf-8").startswith("<!doctype html>")
    # the page's path does not disturb JSON on standard output
    both = watch("run.json", "--json", "-", "--out", "page.html")
    json.loads(both.stdout)
    assert both.stderr == "Page: page.html\n"


@pytest.mark.slow_cases("arguments5-cannot write the page to no/page.html: No such file or directory")
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["none.json"], "none.json cannot be read: No such file or directory"),
        (["other.json"], "other.json is not the record of a monitor: pass a file that Monitor.save wrote"),
        (["broken.json"], "broken.json cannot be read as the record of a monitor"),
        (["run.json", "--target-gap", "2"], "target_gap must be between 0 and 1, got 2.0"),
        (["run.json", "--json", "no/found.json"], "cannot write no/found.json: No such file or directory"),
        (["run.json", "--out", "no/page.html"], "cannot write the page to no/page.html: No such file or directory"),
    ],
)
def test_errors_are_one_line(arguments, text):
    Path("other.json").write_text('{"loss": 1}')
    Path("broken.json").write_text("{")
    result = watch(*arguments)
    assert result.exit_code == 2 and result.stderr.count("\n") == 1
    assert result.stderr.startswith("unlazy: ") and text in result.stderr


def test_neither_help_nor_a_record_imports_jax():
    code = (
        "import sys; from unlazy.cli import app; app(sys.argv[1:], standalone_mode=False); print('jax' in sys.modules)"
    )
    for arguments in (["watch", "--help"], ["watch", "run.json"]):
        done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "False"
    # help needs nothing heavier than the command line itself
    code = code.replace("'jax' in sys.modules", "sorted({'jax', 'numpy', 'scipy', 'pandas'} & set(sys.modules))")
    done = subprocess.run([sys.executable, "-c", code, "watch", "--help"], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
