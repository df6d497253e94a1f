"""Estimators of images: whitening and flips against NumPy, fits against the closed form, errors, files."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.pipeline import make_pipeline

import unlazy
from unlazy import NTK, KernelClassifier, KernelRegressor
from unlazy.estimators import ZCAWhitening
from unlazy.kernels.networks.flips import with_flips
from unlazy.layers import AvgPool, Conv, Dense, GlobalAvgPool, myrtle, serial

RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(30, 4, 6, 2)) + 3
LABELS = np.arange(30) % 3
SMALL = NTK(serial(Conv((3, 3)), "relu", AvgPool((2, 2)), GlobalAvgPool(), Dense()))


def plain_whitening(train, test, regularization):
    """Shankar et al. (2020): no mean, norm 1, second moments, by an eigendecomposition."""
    train, test = (A.reshape(len(A), -1) for A in (train, test))
    train, test = (A - A.mean(1)[:, None] for A in (train, test))
    train, test = (A / np.sqrt((A**2).sum(1))[:, None] for A in (train, test))
    values, vectors = np.linalg.eigh(train.T @ train / len(train) + regularization * np.eye(train.shape[1]))
    return test @ vectors @ np.diag(values**-0.5) @ vectors.T


@pytest.mark.parametrize("regularization", [1e-4, 0.1])
def test_whitening_equals_numpy(regularization):
    whitening = ZCAWhitening(regularization).fit(IMAGES[:20])
    got, wanted = whitening.transform(IMAGES), plain_whitening(IMAGES[:20], IMAGES, regularization)
    # (M + ρ)^{-1/2} with ‖M‖ ≤ 1 of rows of norm 1: 48 roundings of M move it by 48 · 2^-53/ρ^1.5 / 2 at most
    assert got.shape == IMAGES.shape
    np.testing.assert_allclose(got.reshape(30, -1), wanted, rtol=0, atol=48 * 2.0**-53 / regularization**1.5 + 1e-13)
    moments = got[:20].reshape(20, -1).T @ got[:20].reshape(20, -1) / 20
    assert np.linalg.eigvalsh(moments).max() <= 1 + 1e-9  # λ/(λ + ρ)


def test_whitening_with_flips_commutes_with_them():
    plain, even = (ZCAWhitening(flips=flips).fit(IMAGES) for flips in (False, True))
    mirrored = IMAGES[:, :, ::-1]
    both = plain_whitening(np.concatenate([IMAGES, mirrored]), IMAGES, 1e-4).reshape(IMAGES.shape)
    tolerance = 48 * 2.0**-53 / 1e-4**1.5
    np.testing.assert_allclose(even.transform(IMAGES), both, rtol=0, atol=tolerance)
    np.testing.assert_allclose(even.transform(mirrored), even.transform(IMAGES)[:, :, ::-1], rtol=0, atol=tolerance)
    assert np.abs(plain.transform(mirrored) - plain.transform(IMAGES)[:, :, ::-1]).max() > 1e-3


def test_whitening_keeps_types_and_raises():
    whitening = ZCAWhitening().fit(IMAGES)
    single = whitening.transform(IMAGES.astype(np.float32))
    assert single.dtype == np.float32 and whitening.transform((20 * IMAGES).astype(np.uint8)).dtype == np.float64
    # the inputs of size 6 round by 6 · 2^-24, norms are above 4, and (M + 1e-4)^{-1/2} is at most 100
    np.testing.assert_allclose(single, whitening.transform(IMAGES), rtol=0, atol=100 * 48 * 6 * 2.0**-24 / 4)
    assert (ZCAWhitening().fit(IMAGES).transform(np.ones((1, 4, 6, 2))) == 0).all()  # one color: nothing is left
    assert np.array_equal(clone(whitening).fit(IMAGES).whitening_, whitening.whitening_)
    for wrong, said in [(IMAGES[:, :3], "fitted to points of shape"), (IMAGES * np.nan, "NaN"), (np.ones(4), "images")]:
        with pytest.raises(ValueError, match=said):
            whitening.transform(wrong)
    for wrong in (0, -1.0, "much", None):
        with pytest.raises(ValueError, match="regularization"):
            ZCAWhitening(wrong).fit(IMAGES)
    with pytest.raises(ValueError, match="flips=True needs images"):
        ZCAWhitening(flips=True).fit(IMAGES[..., 0])


@pytest.mark.slow
def test_a_fit_is_ridge_regression_with_the_best_left_out_error():
    """K + ridge and a free intercept by NumPy; leaving out each image in turn at the chosen ridge gives its error."""
    y = IMAGES[:, 1, 2, 0] + 0.1 * RNG.normal(size=30)
    model = KernelRegressor(with_flips(SMALL)).fit(IMAGES.astype(np.float32), y)
    images = IMAGES.astype(np.float32).astype(float)
    with unlazy.precision("float64"):
        K = np.asarray(with_flips(SMALL).gram(images))

    def fitted(rows, ridge):
        system = np.block([[K[np.ix_(rows, rows)] + ridge * np.eye(len(rows)), np.ones((len(rows), 1))],
                           [np.ones((1, len(rows))), np.zeros((1, 1))]])  # fmt: skip
        return np.linalg.solve(system, np.append(y[rows], 0))

    def left_out(ridge):
        errors = []
        for i in range(30):
            rows = np.delete(np.arange(30), i)
            solution = fitted(rows, ridge)
            errors.append((K[i, rows] @ solution[:-1] + solution[-1] - y[i]) ** 2)
        return np.mean(errors) / y.var()

    best = left_out(model.ridge_)
    # the systems' condition is at most ‖K‖/ridge
    close = np.linalg.norm(K, 2) / model.ridge_ * 30 * 2.0**-52
    assert close < 1e-2, close
    np.testing.assert_allclose(model.leave_one_out_error_, best, rtol=close)
    assert best <= (1 + close) * min(left_out(10.0 * model.ridge_), left_out(0.1 * model.ridge_))
    solution = fitted(np.arange(30), model.ridge_)
    np.testing.assert_allclose(
        model.predict(images), K @ solution[:-1] + solution[-1], rtol=0, atol=close * np.abs(y).max()
    )


def test_wrong_shapes_raise():
    model = KernelClassifier(SMALL, ridge=1.0).fit(IMAGES, LABELS)
    for wrong in (IMAGES[..., 0], IMAGES[0], IMAGES[:, :3], IMAGES.reshape(30, -1)):
        with pytest.raises(ValueError, match=r"fitted to points of shape \(4, 6, 2\)"):
            model.predict(wrong)
    with pytest.raises(ValueError, match=r"axes of positions.*images are \(n, height, width, channels\)"):
        KernelClassifier(SMALL).fit(IMAGES[..., 0], LABELS)
    with pytest.raises(ValueError, match=r"these points have none.*images as \(n, height, width, channels\)"):
        KernelClassifier(SMALL).fit(IMAGES.reshape(30, -1), LABELS)
    with pytest.raises(ValueError, match=r"dim 4.*X\.reshape\(len\(X\), -1\).*kernel of images"):
        KernelClassifier("ntk").fit(IMAGES, LABELS)


@pytest.mark.slow
def test_a_pipeline_of_images_is_saved_and_loaded(tmp_path):
    model = make_pipeline(ZCAWhitening(flips=True), KernelClassifier(with_flips(SMALL))).fit(IMAGES, LABELS)
    unlazy.estimators.save(model, tmp_path / "images.unlazy")
    again = unlazy.load(tmp_path / "images.unlazy")
    assert np.array_equal(again.predict_proba(IMAGES), model.predict_proba(IMAGES))
    with pytest.raises(ValueError, match="fitted to points of shape"):
        again.predict(IMAGES[:, :3])


@pytest.mark.nightly_cases("float64")
@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_digits_by_myrtle(precision):
    """120 digits teach Myrtle-5 at least 90% of 120 others: a constant guess has 10%."""
    digits = load_digits()
    X = (digits.images[..., None] / 16).astype(np.float32)
    model = KernelClassifier(NTK(myrtle(5)), precision=precision).fit(X[:120], digits.target[:120])
    assert model.score(X[120:240], digits.target[120:240]) >= 0.9
