"""wide_limit on two widths: errors fall, skips and biases agree with the infinite recursion, claims can fail."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.kernels.networks.infinite_width import layer_kernel
from unlazy.lab import run
from unlazy.lab.experiment import Records
from unlazy.lab.experiments.wide_limit import errors, experiment
from unlazy.networks import Network, layer_tangent_kernels
from unlazy.theory.infinite_width.architecture import MLP


@pytest.fixture(scope="module")
def records():
    return run(experiment, seeds=16, change={"width": [32, 512]}, engine="inline", store=None, progress=False)


def test_errors_fall_like_the_root_of_the_width(records):
    claims = experiment.claims(records)
    assert len(claims) == 4
    # 16 seeds at two widths a factor 16 apart: a log error known to 0.25/√16 = 0.06 each gives the slope to ± 0.03
    assert all(abs(c.measured + 0.5) < 4 * 0.03 for c in claims)
    assert len(experiment.figure(records).axes) == 1


def test_claims_notice_kernels_that_do_not_converge(records):
    stuck = Records(
        replace(r, measures={k: np.ones_like(v) * 0.1 * (1 + 0.1 * r.seed) for k, v in r.measures.items()})
        for r in records
    )
    assert {c.verdict for c in experiment.claims(stuck)} == {"does not hold"}


@pytest.mark.parametrize("activation, residual", [("erf", 0.6), ("gelu", 0.0)])
def test_the_finite_and_the_infinite_side_read_one_description(x64, activation, residual):
    """Mean of K_l over draws at width 256 against the infinite K_l: per-layer σ, biases, skips; 4 standard errors and
    the O(1/w) bias of a finite network, whose constant is a few depths."""
    mlp = MLP(2, activation, (1.1, 1.3, 0.9), (0.3, 0.2, 0.1), residual=residual, width=256)
    network, draws = Network(mlp, 4), 64
    X = jnp.asarray(np.random.default_rng(0).standard_normal((3, 4)))
    kernels = jax.jit(jax.vmap(lambda k: layer_tangent_kernels(network, network.init(k), X)))(
        jax.random.split(jax.random.key(0), draws)
    )
    for l, K in enumerate(kernels):
        infinite = layer_kernel(mlp, l + 1).gram(X)
        allowed = 4 * K.std(0, ddof=1) / np.sqrt(draws) + 6 / 256 * jnp.abs(infinite).max()
        assert jnp.all(jnp.abs(K.mean(0) - infinite) < allowed), l


@pytest.mark.slow
def test_quick_holds():
    records = run(experiment, engine="inline", store=None, progress=False)
    assert {c.verdict for c in experiment.claims(records)} == {"holds"}
    assert errors(records, 1)[0] == [32, 128, 512, 2048]
