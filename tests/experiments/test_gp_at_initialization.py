"""gp_at_initialization on two small widths: exact kurtosis, NNGP covariance, and claims that can fail."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.lab import run
from unlazy.lab.experiment import Records
from unlazy.lab.experiments import gp_at_initialization as module
from unlazy.networks.mlp import Network
from unlazy.theory.infinite_width.architecture import MLP

experiment = module.experiment


@pytest.fixture(scope="module")
def records():
    change = {"width": [16, 64], "networks": [500]}
    return run(experiment, seeds=8, change=change, engine="inline", store=None, progress=False)


def test_wide_networks_are_the_gaussian_process(records):
    covariance, kurtosis, slope = experiment.claims(records)
    assert covariance.verdict == kurtosis.verdict == "holds"
    # the exact slope between these widths is -1.06; 8 × 500 networks give it to ± 0.1
    assert abs(slope.measured + 1.06) < 0.4
    assert len(experiment.figure(records).axes) == 3


def test_claims_notice_a_wrong_kernel_and_a_wrong_kurtosis(records):
    wrong = Records(
        replace(r, measures=r.measures | {
            "second": 1.4 * r.measures["second"], "kurtosis": 2.5 * r.measures["kurtosis"]
        }) for r in records
    )  # fmt: skip
    covariance, kurtosis, _ = experiment.claims(wrong)
    assert covariance.verdict == kurtosis.verdict == "does not hold"


def test_the_flat_start_is_the_networks_initialization(x64):
    """One vector of normals fills every parameter once: the network at it has the layout and scale of `init`."""
    network = Network(MLP(2, width=4), 3)
    flat = jnp.arange(float(module._size(network)))
    ours, theirs = module._unpack(network, flat), network.init(jax.random.key(0))
    assert jax.tree.map(jnp.shape, ours) == jax.tree.map(jnp.shape, theirs)
    np.testing.assert_array_equal(np.sort(np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(ours)])), flat)
    many = jax.vmap(network.init)(jax.random.split(jax.random.key(1), 200))
    weights = np.concatenate([np.asarray(layer[0]).ravel() for layer in many])  # (3·4 + 4·4 + 4)·200 = 6,400 entries
    assert abs(weights.std() - 1) < 4 / np.sqrt(2 * weights.size)
