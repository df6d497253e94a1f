"""Myrtle kernels against the recursion written out in NumPy: all pairs of pixels, float64, no symmetry used."""

import jax
import numpy as np
import pytest

from unlazy import NNGP, NTK, Network, nngp_and_ntk
from unlazy.layers import Shape, myrtle

STAGES = {5: (2, 1, 1), 7: (2, 2, 2), 10: (3, 3, 3)}
RNG = np.random.default_rng(3)
IMAGES = RNG.normal(size=(3, 8, 8, 2))


def conv(K, sigma_w, sigma_b):
    """σ_w²/9 Σ_Δ K_{p+Δ,q+Δ} + σ_b² of K[p1, p2, q1, q2], zeros outside."""
    h, w = K.shape[:2]
    padded = np.pad(K, 1)
    total = sum(
        padded[a : a + h, b : b + w, a : a + h, b : b + w] for a in range(3) for b in range(3)
    )  # fmt: skip
    return sigma_w**2 / 9 * total + sigma_b**2


def relu(K, left, right):
    """E φφ and E φ'φ' of Gaussians with these variances. Cho and Saul (2009)."""
    scale = np.sqrt(left[:, :, None, None] * right[None, None])
    angle = np.arccos(np.clip(K / scale, -1, 1))
    return scale * (np.sin(angle) + (np.pi - angle) * np.cos(angle)) / (2 * np.pi), (np.pi - angle) / (2 * np.pi)


def pool(K):
    h, w = K.shape[0] // 2, K.shape[1] // 2
    return K.reshape(h, 2, w, 2, h, 2, w, 2).mean((1, 3, 5, 7))


def variances(K):
    return np.einsum("pqpq->pq", K)


def recursion(depth, x, z, sigma_w, sigma_b):
    """NNGP and NTK of one pair: K(x,z), K(x,x), K(z,z) side by side."""
    pairs = [(x, z), (x, x), (z, z)]
    K = [np.einsum("pqc,rsc->pqrs", a, b) / a.shape[-1] for a, b in pairs]
    T = np.zeros_like(K[0])
    for stage, count in enumerate(STAGES[depth]):
        if stage:
            K, T = [pool(k) for k in K], pool(T)
        for _ in range(count):
            # biases count like any parameter: Θ' = Σ' + σ_w² times the window's mean of Θ
            K = [conv(k, sigma_w, sigma_b) for k in K]
            T = conv(T, sigma_w, 0) + K[0]
            left, right = variances(K[1]), variances(K[2])
            new = [relu(k, *v) for k, v in zip(K, ((left, right), (left, left), (right, right)))]
            K, T = [k for k, _ in new], T * new[0][1]
    sigma = sigma_w**2 * K[0].mean() + sigma_b**2
    return sigma, sigma + sigma_w**2 * T.mean()


@pytest.mark.slow_cases("5")
@pytest.mark.nightly_cases("10")
@pytest.mark.parametrize("depth", [5, *(pytest.param(d, marks=pytest.mark.slow) for d in (7, 10))])
def test_kernels_are_the_recursion(depth, x64):
    sigma_w, sigma_b = 1.3, 0.2
    wanted = np.array([[recursion(depth, x, z, sigma_w, sigma_b) for z in IMAGES] for x in IMAGES])
    network = myrtle(depth, sigma_w, sigma_b)
    # at p = q of x = z the cosine is 1 up to 2^-52, where arccos turns ε into √(2ε) = 2e-8: the NTK's factor φ'φ' moves
    # by 2e-8/(2π) there, of which the mean over 64² pairs keeps a 64th in at most nine layers
    off = ~np.eye(len(IMAGES), dtype=bool)
    both = nngp_and_ntk(network, IMAGES) if depth == 5 else (NNGP(network).gram(IMAGES), NTK(network).gram(IMAGES))
    for column, K in enumerate(map(np.asarray, both)):
        np.testing.assert_allclose(K, wanted[..., column], rtol=9 * 2e-8 / (2 * np.pi))
        # of different images no pair is at the kink: sums of 9 and means of 2^12 terms of one sign, added in any order
        np.testing.assert_allclose(K[off], wanted[..., column][off], rtol=2**12 * 2.0**-52)


def test_other_depths_and_small_images_are_rejected():
    with pytest.raises(ValueError, match="5, 7 or 10 layers of weights, got 6"):
        myrtle(6)
    with pytest.raises(ValueError, match="AvgPool"):
        NTK(myrtle(5)).gram(np.ones((2, 2, 2, 1)))


@pytest.mark.slow
@pytest.mark.slow_cases("5", "7")
@pytest.mark.parametrize("depth", STAGES)
def test_a_finite_network_of_the_same_description(depth):
    network = Network(myrtle(depth), (8, 8, 2), width=3, outputs=4)
    params = network.init(jax.random.key(0))
    assert network(params, IMAGES).shape == (3, 4)
    layers = [w for w in jax.tree.leaves(params) if w.ndim >= 2]
    assert len(layers) == depth and myrtle(depth).after(Shape((8, 8), 2)).positions == ()
