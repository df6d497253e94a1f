"""Kernels of networks
===================

One description of a convolutional network gives its two kernels at infinite width and its finite networks. The
tangent kernels of the finite networks approach the limit as the width grows.

    python examples/kernels_of_networks.py
"""

import jax
import numpy as np

import unlazy
from unlazy import layers

images = np.random.default_rng(0).normal(size=(6, 6, 6, 2))
description = layers.serial(layers.Conv(3), "relu", layers.GlobalAvgPool(), layers.Dense())
nngp, ntk = unlazy.nngp_and_ntk(description, images)
print(f"NNGP {nngp[0, 1]:.4f}, NTK {ntk[0, 1]:.4f} of the first two images")
for width in (16, 256):
    network = unlazy.Network(description, inputs=(6, 6, 2), width=width)
    runs = [unlazy.tangent_kernel(network, network.init(jax.random.key(i)), images) for i in range(4)]
    off = np.mean([np.linalg.norm(np.asarray(K) - ntk) for K in runs]) / np.linalg.norm(ntk)
    print(f"width {width:4d}: relative distance of the tangent kernel from its limit {off:.0%}")
