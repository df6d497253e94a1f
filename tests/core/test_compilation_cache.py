"""Compiled programs are kept between processes, unless the user says otherwise."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from unlazy.core import compilation_cache
from unlazy.core.compilation_cache import SWITCH, compilation_cache_env, delete_least_recently_used

PROGRAM = """
import json
{before}
import unlazy.core.arrays
{after}
import collections, jax
events = collections.Counter()
jax.monitoring.register_event_listener(lambda event, **_: events.update([event.rsplit("/", 1)[-1]]))
value = jax.jit(lambda x: jax.numpy.sin(x) @ jax.numpy.cos(x))(jax.numpy.arange(50.0))
seconds = jax.config.jax_persistent_cache_min_compile_time_secs
print(json.dumps([str(jax.config.jax_compilation_cache_dir), seconds, float(value), events["cache_hits"],
                  events["compile_requests_use_cache"]]))
"""


@pytest.fixture
def environment(tmp_path):
    """No setting of JAX, and an empty cache folder."""
    kept = {k: v for k, v in os.environ.items() if "CACHE" not in k}
    return kept | {"XDG_CACHE_HOME": str(tmp_path / "cache"), "HOME": str(tmp_path), "JAX_PLATFORMS": "cpu"}


def run(environment, before="", after=""):
    """Folder, least compile time, value, number of programs loaded from the cache, and of all programs."""
    code = PROGRAM.format(before=before, after=after)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def programs(tmp_path):
    return [path for path in (tmp_path / "cache").rglob("*-cache")]


@pytest.mark.slow_cases("after JAX", "after a program")
@pytest.mark.parametrize(
    "before", ["", "import jax", "import jax; jax.numpy.ones(3) + 1"], ids=["alone", "after JAX", "after a program"]
)
def test_a_second_process_compiles_nothing(environment, tmp_path, before):
    folder, seconds, value, hits, requests = run(environment, before)
    assert Path(folder).parent == tmp_path / "cache" / "unlazy" / "programs" and seconds == 0
    assert hits == 0 < requests and len(programs(tmp_path)) >= requests
    assert run(environment, before) == [folder, 0, value, requests, requests]


@pytest.mark.slow_cases("OFF", "0", "false")
@pytest.mark.parametrize("word", ["off", "OFF", "0", "false"])
def test_the_switch_turns_the_cache_off(environment, tmp_path, monkeypatch, word):
    assert run({**environment, SWITCH: word})[0] == "None"
    assert not (tmp_path / "cache").exists()
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    monkeypatch.setenv(SWITCH, word)
    assert compilation_cache_env() == {}


LEAST = "jax_persistent_cache_min_compile_time_secs"


@pytest.mark.slow_cases("environment", "later", "least in the environment", "JAX's least", "least", "disabled")
@pytest.mark.parametrize(
    ("variables", "before", "after", "expected"),
    [
        pytest.param({"JAX_COMPILATION_CACHE_DIR": "own"}, "", "", ("own", 1), id="environment"),
        pytest.param(
            {}, "import jax; jax.config.update('jax_compilation_cache_dir', 'own')", "", ("own", 1), id="before"
        ),
        pytest.param(
            {}, "", "import jax; jax.config.update('jax_compilation_cache_dir', 'own')", ("own", 0), id="later"
        ),
        pytest.param({"JAX_ENABLE_COMPILATION_CACHE": "0"}, "", "", ("None", 1), id="disabled"),
        pytest.param({LEAST.upper(): "7"}, "", "", ("", 7), id="least in the environment"),
        pytest.param({LEAST.upper(): "1"}, "", "", ("", 1), id="JAX's least"),
        pytest.param({}, f"import jax; jax.config.update({LEAST!r}, 5.0)", "", ("", 5), id="least"),
    ],
)
def test_settings_of_the_user_are_kept(environment, tmp_path, monkeypatch, variables, before, after, expected):
    monkeypatch.chdir(tmp_path)
    folder, seconds, _, _, _ = run(environment | variables, before, after)
    ours = str(tmp_path / "cache" / "unlazy" / "programs")
    assert seconds == expected[1] and (folder == expected[0] if expected[0] else folder.startswith(ours))
    assert expected[0] == "" or not programs(tmp_path)


def test_a_folder_that_cannot_be_created_turns_the_cache_off(environment, tmp_path):
    (tmp_path / "cache").write_text("a file")
    assert run(environment)[0] == "None"


@pytest.mark.slow
def test_processes_side_by_side_share_the_cache(environment):
    """JAX does not lock its folder: what another process has half written counts as not there."""
    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(lambda _: run(environment), range(3)))
    assert len({value for _, _, value, _, _ in found}) == 1
    assert run(environment)[3] == found[0][4]


@pytest.mark.slow
def test_a_damaged_program_is_compiled_again(environment, tmp_path):
    value, requests = run(environment)[2], run(environment)[4]
    for path in programs(tmp_path):
        path.write_bytes(path.read_bytes()[:20])
    found = run(environment)
    assert found[2] == value and found[3] == 0 and found[4] == requests


def test_the_folder_is_bounded_and_keeps_what_was_used_last(tmp_path):
    for age, name in enumerate(("newest", "newer", "older", "oldest")):
        path = tmp_path / name / "program-cache"
        path.parent.mkdir()
        path.write_bytes(bytes(100))
        os.utime(path, (1e9 - age, 1e9 - age))
    delete_least_recently_used(tmp_path, 400)
    assert len(list(tmp_path.rglob("*-cache"))) == 4
    delete_least_recently_used(tmp_path, 399)  # 320 bytes are kept
    assert {path.parent.name for path in tmp_path.rglob("*-cache")} == {"newest", "newer", "older"}


@pytest.mark.slow
def test_enabling_shortens_a_folder_that_has_grown(environment, tmp_path):
    run(environment)
    before = programs(tmp_path)
    after = run(environment, "from unlazy.core import compilation_cache; compilation_cache.MAX_BYTES = 1")
    assert before and after[3] == 0  # the programs were deleted before the first compilation


def test_other_processors_have_their_own_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    monkeypatch.delenv(SWITCH, raising=False)
    monkeypatch.setattr(compilation_cache, "cache_folder", lambda: tmp_path)
    here = compilation_cache_env()["JAX_COMPILATION_CACHE_DIR"]
    assert Path(here).is_dir() and Path(here).stat().st_mode & 0o077 == 0
    monkeypatch.setattr(compilation_cache, "_processor_hash", lambda: "another")
    assert compilation_cache_env()["JAX_COMPILATION_CACHE_DIR"] != here
