"""Gram matrices in a folder: the entries of the kernel, bitwise equal after kills, damaged tiles rejected."""

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import jax
import numpy as np
import pytest

import unlazy
from unlazy.core.arrays import dot
from unlazy.layers import AvgPool, Conv, Dense, GlobalAvgPool, serial
from unlazy.products import gram_store, tile_store
from unlazy.products.tile_store import DIGEST, MATRIX, PROBLEM, SUMS

RNG = np.random.default_rng(0)
X = RNG.normal(size=(23, 3)).astype(np.float32)
Z = RNG.normal(size=(11, 3)).astype(np.float32)
KERNEL = unlazy.Laplace(1.5)
SMALL = serial(Conv(3), "relu", AvgPool(2), Conv(3), "relu", GlobalAvgPool(), Dense())


def kept(store):
    """Everything that a reader of the store sees."""
    return (store / MATRIX).read_bytes(), (store / SUMS).read_bytes()


@pytest.mark.slow_cases("rectangular-1", "symmetric-1")
@pytest.mark.parametrize("tile", [1, 4, 8, 23, 100])
@pytest.mark.parametrize("other", [None, Z], ids=["symmetric", "rectangular"])
def test_the_stored_matrix_is_the_gram_matrix(tmp_path, tile, other):
    K = unlazy.gram_to_store(KERNEL, X, other, store=tmp_path, tile=tile)
    wanted = np.asarray(KERNEL.gram(X, other), np.float64)
    assert isinstance(K, np.memmap) and not K.flags.writeable and K.dtype == np.float32 and K.shape == wanted.shape
    # Laplace: k = exp(-r/1.5), r = sqrt(r²) and r² from inner products of norms below 16 is off by 16 · 8 · 2^-24;
    # at r ≥ √that the error of r is at most √(128 · 2^-24) = 2.8e-3, and at usual distances far smaller
    r = np.linalg.norm(X[:, None].astype(float) - (X if other is None else other)[None].astype(float), axis=2)
    error = 128 * 2.0**-24 / np.maximum(2 * r, np.sqrt(128 * 2.0**-24))
    assert (np.abs(K - np.exp(-r / 1.5)) <= error + 2.0**-22).all()
    if other is None:
        assert np.array_equal(K, K.T) and np.array_equal(np.diag(K), np.diag(wanted))


@pytest.mark.slow
def test_any_points_and_precision(tmp_path, x64):
    images = RNG.normal(size=(9, 4, 4, 2))
    K = unlazy.gram_to_store(unlazy.NTK(SMALL), images, store=tmp_path / "images", tile=4)
    # sums of fewer than 2^10 terms of one size, twice
    assert K.dtype == np.float64
    np.testing.assert_allclose(K, unlazy.NTK(SMALL).gram(images), rtol=2**10 * 2.0**-52)
    tree = {"a": images[..., 0].reshape(9, -1), "b": images[..., 1].reshape(9, -1)}
    kernel = unlazy.Custom(lambda x, z: dot(x["a"], z["a"]) + dot(x["b"], z["b"]))
    K = unlazy.gram_to_store(kernel, tree, store=tmp_path / "tree", tile=4)
    flat = images.reshape(9, -1)
    np.testing.assert_allclose(K, flat @ flat.T, rtol=0, atol=32 * 2.0**-52 * np.square(flat).sum(1).max())


def test_a_run_resumes_where_it_stopped(tmp_path, monkeypatch):
    whole = unlazy.gram_to_store(KERNEL, X, store=tmp_path / "whole", tile=5)
    of_tile, seen = gram_store._entries, []

    def interrupted(files, tile, *rest):
        if len(seen) == 7:
            raise KeyboardInterrupt
        seen.append(tile)
        return of_tile(files, tile, *rest)

    store = tmp_path / "interrupted"
    monkeypatch.setattr(gram_store, "_entries", interrupted)
    with pytest.raises(KeyboardInterrupt):
        unlazy.gram_to_store(KERNEL, X, store=store, tile=5)
    monkeypatch.setattr(gram_store, "_entries", lambda *a: seen.append(a[1]) or of_tile(*a))
    K = unlazy.gram_to_store(KERNEL, X, store=store)  # with the tiles it was begun with
    assert sorted(seen) == list(range(15))  # the triangle of 5 × 5 tiles, each once
    assert np.array_equal(K, whole) and kept(store) == kept(tmp_path / "whole")
    unlazy.gram_to_store(KERNEL, X, store=store)
    assert len(seen) == 15


def test_tiles_of_other_processes_are_awaited(tmp_path, monkeypatch):
    """A tile that another process holds is left to it, and taken over when that process is gone."""
    whole = unlazy.gram_to_store(KERNEL, X, store=tmp_path / "whole", tile=5)
    refused, looks = {3: 2, 9: 3}, []
    claimed = tile_store.TileStore.claim

    class Held:
        def __enter__(self):
            return False

        def __exit__(self, *error):
            return None

    def held(self, tile):
        if refused.get(tile, 0) > 0:
            refused[tile] -= 1
            return Held()
        return claimed(self, tile)

    monkeypatch.setattr(tile_store.TileStore, "claim", held)
    monkeypatch.setattr(gram_store.time, "sleep", looks.append)
    assert np.array_equal(unlazy.gram_to_store(KERNEL, X, store=tmp_path / "shared", tile=5), whole)
    assert refused == {3: 0, 9: 0} and looks == [gram_store.POLL_SECONDS]  # one round found nothing free


@pytest.mark.parametrize("change", ["kernel", "points", "other points", "precision", "tile", "unlazy"])
def test_another_problem_is_rejected(tmp_path, change, monkeypatch):
    unlazy.gram_to_store(KERNEL, X, Z, store=tmp_path, tile=5)
    kernel, left, right, tile = KERNEL, X, Z, 5
    if change == "kernel":
        kernel = unlazy.Laplace(1.25)
    elif change == "points":
        left = X + np.float32(1e-3)
    elif change == "other points":
        right = Z[::-1]
    elif change == "tile":
        tile = 6
    elif change == "unlazy":
        monkeypatch.setattr(gram_store, "VERSION", "0.0.1")
    named = {"other points": "points"}.get(change, change)
    with (
        jax.enable_x64(change == "precision"),
        pytest.raises(ValueError, match=f"another problem .different .*{named}"),
    ):
        if change == "precision":
            left, right = left.astype(float), right.astype(float)
        unlazy.gram_to_store(kernel, left, right, store=tmp_path, tile=tile)


@pytest.mark.parametrize("where", ["entry", "mirror", "sum"])
def test_damaged_tiles_are_rejected_and_recomputed(tmp_path, where):
    whole = np.array(unlazy.gram_to_store(KERNEL, X, store=tmp_path, tile=5))
    good = kept(tmp_path)
    path, place = tmp_path / MATRIX, os.path.getsize(tmp_path / MATRIX) - 23 * 23 * 4
    at = {"entry": place + (2 * 23 + 11) * 4, "mirror": place + (11 * 23 + 2) * 4, "sum": 2 * DIGEST + 7}[where]
    if where == "sum":
        path = tmp_path / SUMS
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)
    with pytest.raises(ValueError, match=r"tile \(0, 2\) .* is damaged.*repair=True"):
        unlazy.gram_to_store(KERNEL, X, store=tmp_path)
    assert np.array_equal(unlazy.gram_to_store(KERNEL, X, store=tmp_path, repair=True), whole)
    assert kept(tmp_path) == good


def test_a_tile_of_another_store_is_rejected(tmp_path):
    """Entries and sums copied from the matrix of other points: the sum says whose they are."""
    for name, points in (("one", X), ("two", X + np.float32(1))):
        unlazy.gram_to_store(KERNEL, points, store=tmp_path / name, tile=5)
    for file in (MATRIX, SUMS):
        (tmp_path / "one" / file).write_bytes((tmp_path / "two" / file).read_bytes())
    with pytest.raises(ValueError, match="is damaged"):
        unlazy.gram_to_store(KERNEL, X, store=tmp_path / "one")


def test_other_misuse_raises(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file"):
        unlazy.gram_to_store(KERNEL, X, store=tmp_path / "file")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("")
    with pytest.raises(ValueError, match=r"do not belong to a Gram matrix store .thesis\.tex"):
        unlazy.gram_to_store(KERNEL, X, store=tmp_path / "full")
    with pytest.raises(ValueError, match="tile"):
        unlazy.gram_to_store(KERNEL, X, store=tmp_path / "a", tile=0)
    unlazy.gram_to_store(KERNEL, X, store=tmp_path / "cut", tile=5)
    content = (tmp_path / "cut" / MATRIX).read_bytes()
    (tmp_path / "cut" / MATRIX).write_bytes(content[:-4])
    with pytest.raises(ValueError, match="truncated or altered"):
        unlazy.gram_to_store(KERNEL, X, store=tmp_path / "cut")
    (tmp_path / "cut" / PROBLEM).write_text("{")
    with pytest.raises(ValueError, match="cannot be read"):
        unlazy.gram_to_store(KERNEL, X, store=tmp_path / "cut")
    usage = tile_store.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(tile_store.shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(ValueError, match="larger disk"):
        unlazy.gram_to_store(KERNEL, X, store=tmp_path / "small disk")


def test_a_store_whose_creation_was_killed_is_created_again(tmp_path):
    (tmp_path / MATRIX).write_bytes(b"half a head")
    (tmp_path / "problem.0123.partial.json").write_text("{")
    K = unlazy.gram_to_store(KERNEL, X, store=tmp_path, tile=5)
    assert np.array_equal(K, K.T) and "points" in json.loads((tmp_path / PROBLEM).read_text())


SCRIPT = """
import sys
import jax
import numpy as np
from unlazy import NTK, gram_to_store
from unlazy.layers import AvgPool, Conv, Dense, GlobalAvgPool, serial
from unlazy.products import gram_store

of_tile, computed = gram_store._entries, []
def counted(*given):
    computed.append(given[1])
    return of_tile(*given)
gram_store._entries = counted
network = serial(Conv(3), "relu", AvgPool(2), Conv(3), "relu", GlobalAvgPool(), Dense())
images = np.random.default_rng(1).normal(size=(150, 8, 8, 1)).astype(np.float32)
gram_to_store(NTK(network), images, store=sys.argv[1], tile=10)
print(len(computed))
"""
TILES = 15 * 16 // 2


def begin(store, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    return subprocess.Popen([sys.executable, script, store], stdout=subprocess.PIPE, text=True)


def tiles_done(store: Path) -> int:
    path = store / SUMS
    raw = np.frombuffer(path.read_bytes(), np.uint8) if path.exists() else np.zeros(0, np.uint8)
    return int(raw.reshape(-1, DIGEST).any(1).sum())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The store of a process that ran alone to its end."""
    folder = tmp_path_factory.mktemp("undisturbed")
    assert begin(folder / "store", folder).communicate()[0].strip() == str(TILES)
    return folder / "store"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
@pytest.mark.nightly
def test_ten_kills_change_no_bit(tmp_path, undisturbed):
    store, moments, killed = tmp_path / "killed", random.Random(0), 0
    while killed < 10:
        before = tiles_done(store)
        process = begin(store, tmp_path)
        goal = before + moments.randint(0, 8)  # 10 lives of at most 9 tiles or so are fewer than all
        while tiles_done(store) <= goal and process.poll() is None:
            time.sleep(0.004)
        time.sleep(moments.uniform(0, 0.02))
        assert process.poll() is None, "it ended before it was killed"
        process.send_signal(signal.SIGKILL)
        process.wait()
        killed += 1
        assert tiles_done(store) > before
    assert tiles_done(store) < TILES
    last = begin(store, tmp_path)
    left = TILES - tiles_done(store)
    assert left - 1 <= int(last.communicate()[0]) <= left
    assert kept(store) == kept(undisturbed)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no locks of bytes")
def test_two_processes_share_the_work(tmp_path, undisturbed):
    """Both end with the whole matrix, and no tile was computed twice."""
    store = tmp_path / "shared"
    both = [begin(store, tmp_path) for _ in range(2)]
    computed = [int(process.communicate()[0]) for process in both]
    assert sum(computed) == TILES and kept(store) == kept(undisturbed)
