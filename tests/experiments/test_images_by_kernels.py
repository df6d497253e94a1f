"""images_by_kernels: files of images, nested sets, claims that can fail, and the quick sweep."""

import jax
import numpy as np
import pytest

from unlazy.core.errors import UnlazyError
from unlazy.lab import run
from unlazy.lab.experiment import Record, Records
from unlazy.lab.experiments import images_by_kernels as ik
from unlazy.lab.runner.settings import resolve_config

QUICK = ik.experiment.quick.points()[0]


def made_up(myrtle=0.7, network=0.6, convolution=0.4, connected=0.4, file=None):
    scores = {"connected": connected, "convolution": convolution, "myrtle5": myrtle, "network": network}
    shape, sizes = np.array([0.1, 0.2, 0.75, 1.0]), np.array([20, 40, 80, 160])
    return Records(
        Record(QUICK | {"model": m, "file": file}, seed, {"sizes": sizes, "accuracy": shape * score + 0.001 * seed})
        for m, score in scores.items()
        for seed in range(3)
    )


@pytest.fixture
def file(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {
        "X_train": rng.integers(0, 255, (60, 4, 4, 3)).astype(np.uint8), "y_train": np.arange(60) % 3,
        "X_test": rng.integers(0, 255, (20, 4, 4, 3)).astype(np.uint8), "y_test": np.arange(20) % 3,
    }  # fmt: skip
    np.savez(tmp_path / "small.npz", **arrays)
    return str(tmp_path / "small.npz"), arrays


def test_digits_are_moved_and_scaled_by_the_training_images_alone():
    X, Y, T, truth = ik.sample_images(QUICK, jax.random.key(0))
    assert X.shape == (160, 8, 8, 1) and T.shape == (200, 8, 8, 1) and Y.shape == (160, 10) and X.dtype == np.float32
    # float32 pixels of size up to ten, means of 160 of them
    np.testing.assert_allclose(X.mean(0), 0, atol=10 * 2.0**-24)
    np.testing.assert_allclose(np.mean(X.astype(float) ** 2), 1, rtol=2.0**-22)
    assert set(truth) == set(range(10)) and np.array_equal(ik.sample_images(QUICK, jax.random.key(0))[2], T)
    assert not np.array_equal(ik.sample_images(QUICK, jax.random.key(1))[2], T)


def test_files_keep_their_test_images_apart(file):
    path, arrays = file
    X, Y, _, truth = ik.sample_images(QUICK | {"file": path, "most": 40, "test": 20, "whiten": True}, jax.random.key(0))
    assert X.shape == (40, 4, 4, 3) and sorted(truth) == sorted(arrays["y_test"]) and Y.sum() == 40
    # whitened: second moments of the training images are λ/(λ + ρ) ≤ 1 in every direction
    rows = X.reshape(40, -1).astype(float)
    assert np.linalg.eigvalsh(rows.T @ rows / 40).max() <= 1 + 1e-4
    with pytest.raises(UnlazyError, match="fewer"):
        ik.sample_images(QUICK | {"file": path, "most": 100}, jax.random.key(0))
    assert resolve_config(ik.experiment, change={"file": ["some/where.npz"]}).points()[0]["file"] == "some/where.npz"


def test_a_file_without_images_is_rejected(tmp_path):
    rows = {f"{a}_{b}": np.zeros((4, 2)) if a == "X" else np.arange(4) % 2 for a in "Xy" for b in ("train", "test")}
    np.savez(tmp_path / "rows.npz", **rows)
    with pytest.raises(UnlazyError, match="height, width, channels"):
        ik.load_images(str(tmp_path / "rows.npz"))


def test_kernels_are_fitted_to_nested_sets():
    found = ik.trial(QUICK | {"most": 80, "test": 100}, jax.random.key(0))
    assert found["sizes"].tolist() == [10, 20, 40, 80] and found["accuracy"].shape == (4,)
    assert ((found["accuracy"] >= 0) & (found["accuracy"] <= 1)).all()


@pytest.mark.slow
def test_a_file_with_whitening_and_flips(file):
    params = QUICK | {"file": file[0], "most": 40, "test": 20, "whiten": True, "flips": True}
    for model in ("connected", "myrtle5"):
        assert ik.trial(params | {"model": model}, jax.random.key(0))["accuracy"].shape == (4,)


def test_claims_hold_and_fail():
    assert [c.verdict for c in ik.claims(made_up())] == ["holds"] * 5
    assert [c.verdict for c in ik.claims(made_up(0.45, 0.6, 0.5, 0.4))] == ["does not hold"] * 5
    assert len(ik.claims(made_up(file="cifar10.npz"))) == 4
    assert len(ik.figure(made_up()).axes) == 1


@pytest.mark.slow
def test_quick_holds(monkeypatch):
    monkeypatch.setattr(ik, "HALVINGS", (2, 1))  # smaller sizes are for the figure: no claim reads them
    records = run(ik.experiment, engine="inline", store=None, progress=False)
    assert {c.verdict for c in ik.claims(records)} == {"holds"}
