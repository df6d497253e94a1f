"""The command line: exit codes, one-line error messages, fast startup."""

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from unlazy import lab
from unlazy._version import VERSION
from unlazy.cli import app
from unlazy.lab import experiments
from unlazy.lab.runner.store import FILE, SCHEMA

TOYS = Path(__file__).parent / "lab"
_WITH_TOYS = {"PYTHONPATH": os.pathsep.join([str(TOYS), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)}


@pytest.fixture(autouse=True)
def somewhere(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(TOYS)
    monkeypatch.chdir(tmp_path)


def unlazy(*arguments: str):
    return CliRunner().invoke(app, arguments)


def run(*arguments: str):
    return unlazy("run", *arguments, "--engine", "inline")


def sentence(result) -> str:
    """The one line on standard error; no other output, no traceback, exit code 2."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("unlazy: ")
    return line


def test_run_prints_claims_and_keeps_trials(tmp_path):
    result = run("lab_toys:plain")
    assert result.exit_code == 0, result.output
    assert "records exist" in result.stdout
    assert len(lab.load("lab_toys:plain", store=tmp_path / "results")) == 12


def test_set_seeds_and_store(tmp_path):
    result = run("lab_toys:plain", "--set", "n=5,6", "--seeds", "2", "--store", "here")
    assert result.exit_code == 0, result.output
    stored = lab.load("lab_toys:plain", seeds=2, change={"n": [5, 6]}, store="here")
    assert [(r.params["n"], r.seed) for r in stored] == [(5, 0), (5, 1), (6, 0), (6, 1)]


def test_fresh_runs_everything_again():
    run("lab_toys:plain", "--seeds", "1")
    assert run("lab_toys:plain", "--fresh").exit_code == 0
    assert len(lab.load("lab_toys:plain")) == 3


def test_strict_fails_when_a_claim_does():
    assert run("lab_toys:wrong").exit_code == 0
    assert run("lab_toys:wrong", "--strict").exit_code == 1
    assert run("lab_toys:plain", "--strict").exit_code == 0


def test_failed_trials_change_the_exit_code(monkeypatch):
    monkeypatch.setenv("TOY_FAILS", "1")
    result = run("lab_toys:plain")
    assert result.exit_code == 1
    assert "note: 4 trials of toy_plain failed (the first with RuntimeError: this one fails)" in result.stderr
    shown = unlazy("show", "lab_toys:plain", "--failures")
    assert shown.exit_code == 0 and shown.stdout.count("RuntimeError: this one fails") == 4


def test_report_and_export_from_what_is_stored():
    run("lab_toys:plain", "--seeds", "2")
    result = unlazy("report", "lab_toys:plain")
    assert result.exit_code == 0, result.output
    assert "note: toy_plain: 6 of 12 trials are stored" in result.stderr
    assert "toy_plain" in Path("results/report.html").read_text()
    exported = unlazy("export", "lab_toys:plain")
    assert exported.exit_code == 0, exported.output
    assert len(Path("results/export/toy_plain.csv").read_text().splitlines()) == 7


@pytest.mark.slow
def test_demo_runs_and_writes_the_page(monkeypatch):
    from dataclasses import replace

    import lab_toys

    monkeypatch.setattr(lab, "all_experiments", lambda: [replace(lab_toys.plain, demo=True), lab_toys.broken])
    result = unlazy("demo", "--n-jobs", "1")
    assert result.exit_code == 0, result.output
    assert "records exist" in result.stdout and Path("results/report.html").exists()
    assert "results/report.html" in result.stdout.replace("\n", "")


def test_version():
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0 and result.stdout.strip() == f"unlazy {VERSION}"


def test_list_and_show():
    assert unlazy("list").exit_code == 0
    shown = unlazy("show", "lab_toys:means")
    assert shown.exit_code == 0
    for part in ("a toy for the tests", "T1", "8 points × 6 seeds", "n = 5, 7, 9, 16", "scale = 2.0"):
        assert part in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("nothing_like_this",), "no experiment 'nothing_like_this'"),
        ((), "name one or more experiments"),
        (("lab_toys:plain", "--set", "n=-5"), "n must be at least 1, got -5"),
        (("lab_toys:means", "--set", "n=0"), "n must be at least 1, got 0"),
        (("lab_toys:plain", "--set", "m=5"), "toy_plain has no parameter 'm'"),
        (("lab_toys:means", "--set", "method=mode"), "method cannot be 'mode'"),
        (("lab_toys:plain", "--set", "n"), "--set takes name=value"),
        (("lab_toys:plain", "--seeds", "0"), "seeds must be a positive integer, got 0"),
        (("lab_toys:plain", "--n-jobs", "-1"), "n_jobs must be a positive integer, got -1"),
        (("lab_toys:plain", "--address", "tcp://x:1"), "an address requires the dask engine"),
        (("lab_toys:plain", "--store", "/dev/null/results"), "cannot open the store"),
        (("lab_toys:plain", "--store", "/dev/full"), "cannot open the store"),
    ],
)
def test_invalid_input_gives_a_one_line_error(arguments, expected):
    assert expected in sentence(run(*arguments))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("../../evil",), "no experiment '../../evil'"),
        (("../../evil:x",), "'../../evil' is not a module name"),
        ((":x",), "'' is not a module name"),
        (("no_such_module:x",), "No module named 'no_such_module'"),
        (("lab_toys:nothing",), "'lab_toys:nothing' is not an Experiment"),
        (("",), "no experiment ''"),
    ],
)
@pytest.mark.parametrize("command", ["run", "show", "report", "export"])
def test_invalid_names_give_a_one_line_error(command, arguments, expected, tmp_path):
    if command in ("report", "export"):
        run("lab_toys:plain", "--seeds", "1")
    assert expected in sentence(unlazy(command, *arguments))
    assert {p.name for p in tmp_path.iterdir()} <= {"results"}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (f"n={10**400}", "n must be below 2^63, got a number of about 401 digits"),
        (f"n={'9' * 5000}", "--set cannot parse 999999999999999999999999999999… (5000 characters)"),
        (f"n={2**63}", "n must be below 2^63"),
        ("n=1e300", "n must be below 2^63, got 1e+300"),
        ("n=nan", "n must be an integer, got nan"),
        ("n=inf", "n must be an integer, got inf"),
        ("n=Infinity", "n must be an integer, got inf"),
        ("n=,", "n cannot be ''"),
        ("n=1,,2", "n cannot be ''"),
        ("n=[]", "n cannot be []"),
        ("pause=nan", "pause must be a finite number, got nan"),
        ("pause=-inf", "pause must be a finite number, got -inf"),
        ("pause=1e400", "pause must be a finite number, got inf"),
        (f"pause={10**400}", "pause must be below 2^63"),
        (f"n={'[' * 20000}{']' * 20000}", "--set cannot parse [["),
        ("pause=", "--set takes name=value"),
    ],
)
def test_impossible_values_give_a_one_line_error(change, expected, tmp_path):
    assert expected in sentence(run("lab_toys:plain", "--set", change))
    assert not list(tmp_path.iterdir())


def test_too_many_seeds_give_a_one_line_error():
    assert "seeds must be at most 1,000,000" in sentence(run("lab_toys:plain", "--seeds", str(10**9)))


OWN = """
from lab_toys import figure, holds
from unlazy.lab.experiment import Experiment, config

def trial(params, key):
    return {"value": VALUE}

words = dict.fromkeys(("question", "prediction", "protocol", "verdict"), "my own")
grid = config({"n": [1, 2]}, seeds=2)
mine = Experiment("NAME", "general", ("T1",), **words, trial=trial, claims=holds, figure=figure, quick=grid, full=grid,
                  vectorized=False)
"""


def write_module(name: str, experiment: str, value: float) -> None:
    Path(f"{name}.py").write_text(OWN.replace("NAME", experiment).replace("VALUE", str(value)))


def test_modules_of_the_working_folder_are_found_and_reported_again():
    write_module("own_first", "my_first", 1.0)
    assert run("own_first:mine").exit_code == 0
    shown = unlazy("show", "my_first")  # by its name, since the store knows where it lives
    assert shown.exit_code == 0 and "my own" in shown.stdout
    report = unlazy("report")
    assert report.exit_code == 0, report.output
    assert 'id="my_first"' in Path("results/report.html").read_text()
    before = set(Path("results").iterdir())
    assert unlazy("report", "my_first", "--out", "elsewhere").exit_code == 0
    assert Path("elsewhere/report.html").exists() and set(Path("results").iterdir()) == before
    assert unlazy("export").exit_code == 0
    assert len(Path("results/export/my_first.csv").read_text().splitlines()) == 5
    Path("own_first.py").unlink()
    del sys.modules["own_first"]
    gone = unlazy("report")
    assert gone.exit_code == 2 and "note: no experiment 'own_first:my_first'" in gone.stderr


def test_the_same_name_in_two_modules_is_two_experiments(monkeypatch):
    monkeypatch.syspath_prepend(".")
    for name, value in (("own_second", 2.0), ("own_third", 3.0)):
        write_module(name, "shared", value)
        assert run(f"{name}:mine").exit_code == 0
    assert set(lab.load("own_second:mine").measure("value")) == {2.0}
    assert set(lab.load("own_third:mine").measure("value")) == {3.0}
    expected = "is ambiguous: own_second:shared and own_third:shared; specify one as module:attribute"
    assert expected in sentence(unlazy("show", "shared"))
    assert unlazy("export").exit_code == 0
    assert {p.name for p in Path("results/export").iterdir()} == {"own_second.shared.csv", "own_third.shared.csv"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1/0", "ZeroDivisionError: division by zero"), ("def", "SyntaxError"), ("raise SystemExit(3)", "SystemExit: 3")],
)
def test_a_module_that_cannot_be_imported_gives_a_one_line_error(text, expected):
    Path("own_broken.py").write_text(text)
    assert expected in sentence(run("own_broken:mine"))


def test_a_module_hidden_by_an_installed_one_gives_a_one_line_error():
    Path("random.py").write_text("raise RuntimeError('never imported')")
    assert "random.py in this folder is shadowed by" in sentence(run("random:mine"))


@pytest.mark.slow
def test_workers_find_modules_of_the_working_folder():
    write_module("own_fourth", "my_fourth", 4.0)
    script = "from unlazy.cli import main; main()"
    result = subprocess.run(
        [sys.executable, "-P", "-c", script, "run", "own_fourth:mine", "--n-jobs", "1"], capture_output=True, text=True,
        env=os.environ | _WITH_TOYS,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr


def test_a_damaged_trial_gives_a_one_line_error():
    run("lab_toys:plain", "--seeds", "1")
    for column, value in (("measures", "{not json"), ("measures", "[1]"), ("arrays", b"\xff" * 40), ("measures", None)):
        with sqlite3.connect(Path("results") / FILE) as db:
            before = db.execute(f"SELECT rowid, {column} FROM trial LIMIT 1").fetchone()
            db.execute(f"UPDATE trial SET {column} = ? WHERE rowid = ?", (value, before[0]))
        for command in (("run", "lab_toys:plain", "--seeds", "1", "--engine", "inline"), ("report",), ("export",)):
            expected = "contains a damaged trial of toy_plain: the measures of seed 0 cannot be read"
            assert expected in sentence(unlazy(*command))
        with sqlite3.connect(Path("results") / FILE) as db:
            db.execute(f"UPDATE trial SET {column} = ? WHERE rowid = ?", before[::-1])
        db.close()
    assert unlazy("export").exit_code == 0


def test_an_unknown_engine_suggests_the_nearest():
    assert "did you mean 'inline'" in sentence(unlazy("run", "lab_toys:plain", "--engine", "inlin"))


def test_a_misspelled_name_gets_a_suggestion(monkeypatch):
    import lab_toys

    monkeypatch.setattr("unlazy.lab.runner.catalog.all_experiments", lambda: [lab_toys.plain])
    assert "did you mean 'toy_plain'" in sentence(run("toy_plian"))


@pytest.mark.parametrize("command", ["report", "export"])
def test_reading_an_empty_folder_gives_a_one_line_error(command):
    assert "nothing is stored in nowhere" in sentence(unlazy(command, "--store", "nowhere"))


def test_a_newer_store_gives_a_one_line_error_and_is_not_modified():
    run("lab_toys:plain")
    with sqlite3.connect(Path("results") / FILE) as db:
        db.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    db.close()
    before = (Path("results") / FILE).read_bytes()
    assert "written by a newer version of unlazy" in sentence(run("lab_toys:plain", "--seeds", "9"))
    assert (Path("results") / FILE).read_bytes() == before


def test_a_file_that_is_not_a_store_gives_a_one_line_error():
    Path("results").mkdir()
    (Path("results") / FILE).write_text("not a database at all, just some text" * 30)
    assert "not a database" in sentence(run("lab_toys:plain"))


@pytest.mark.slow
def test_a_full_disk_gives_a_one_line_error_and_loses_nothing():
    """RLIMIT_FSIZE keeps files from growing, like a full disk."""
    run("lab_toys:plain", "--seeds", "1")
    limited = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (2**17, 2**17));"  # the log of 600 trials is larger
        "from unlazy.cli import main; main()"
    )
    command = ["run", "lab_toys:plain", "--seeds", "200", "--engine", "inline"]
    result = subprocess.run(
        [sys.executable, "-c", limited, *command], capture_output=True, text=True,
        env={k: v for k, v in os.environ.items() if not k.startswith("JAX_COMP")} | _WITH_TOYS,
    )  # fmt: skip
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert "cannot write to the store" in result.stderr.strip().splitlines()[-1]
    kept = len(lab.load("lab_toys:plain", seeds=200))
    assert 3 < kept < 600
    assert run("lab_toys:plain", "--seeds", "5").exit_code == 0  # without the limit it resumes
    assert len(lab.load("lab_toys:plain", seeds=200)) >= kept
    assert len(lab.load("lab_toys:plain", seeds=5)) == 15


@pytest.mark.parametrize(
    ("arguments", "expected", "environment"),
    [
        (["list"], "one_large_step", {}),
        (["show", "solver_race"], "nystrom_cg", {}),
        (["--help"], "compare", {}),
        (["run", "--help"], "--strict", {}),
        ([], "staircase", {"_UNLAZY_COMPLETE": "complete_bash", "COMP_WORDS": "unlazy show st", "COMP_CWORD": "2"}),
        ([], "compare", {"_UNLAZY_COMPLETE": "complete_bash", "COMP_WORDS": "unlazy com", "COMP_CWORD": "1"}),
    ],
    ids=["list", "show", "help", "run help", "completion of names", "completion of commands"],
)
def test_the_command_does_not_import_jax(arguments, expected, environment):
    """What is not imported is poisoned: an import would raise."""
    heavy = ("jax", "jaxlib", "sklearn", "scipy", "matplotlib", "pandas", "dask", "joblib")
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({heavy})); sys.argv = ['unlazy', *{arguments}];"
        "from unlazy.cli import app; app(prog_name='unlazy')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | environment)
    assert done.returncode == 0 and expected in done.stdout, done.stderr


def test_show_does_not_import_jax_beside_trials_of_other_experiments():
    assert run("lab_toys:plain", "--seeds", "1").exit_code == 0
    code = (
        "import sys; sys.modules.update(jax=None); sys.argv = ['unlazy', 'show', 'solver_race'];"
        "from unlazy.cli import app; app()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and "nystrom_cg" in done.stdout, done.stderr


def test_list_reads_the_files_if_the_index_lacks_one(monkeypatch, tmp_path):
    import lab_toys

    entries = json.loads(experiments.INDEX.read_text(encoding="utf-8"))
    monkeypatch.setattr(experiments, "INDEX", tmp_path / "index.json")
    experiments.INDEX.write_text(json.dumps(entries[1:]), encoding="utf-8")
    monkeypatch.setattr(lab, "all_experiments", lambda: [lab_toys.plain])
    assert "toy_plain" in unlazy("list").stdout
