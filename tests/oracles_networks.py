"""NNGP and weighted tangent kernels of fully connected networks from their definitions, by quadrature in NumPy."""

from typing import NamedTuple

import numpy as np

from oracles_gaussian import _rule, bivariate_expectation


class Function(NamedTuple):
    """φ, φ' and the kinks of φ, in NumPy."""

    value: object
    slope: object
    kinks: tuple = ()


def expectation(function, q, kinks=()):
    """E f(a) for a ~ N(0, q)."""
    x, w = _rule(np.array([[k / np.sqrt(q) for k in kinks]]))
    return np.sum(w * function(np.sqrt(q) * x))


def tangent_kernel(phi, products, sigma_w, sigma_b, residual, weights, bias_weights):
    """Σ and Σ_l (α_l, β_l for weights and biases) K_l of one pair with ⟨x,z⟩, ⟨x,x⟩, ⟨z,z⟩ [K7, K8]."""
    xz, xx, zz = products
    w2, b2 = np.square(sigma_w), np.square(sigma_b)
    q12, q11, q22 = (w2[0] * p + b2[0] for p in (xz, xx, zz))
    sigma, theta = q12, weights[0] * w2[0] * xz + bias_weights[0] * b2[0]
    for layer in range(1, len(w2)):
        skip = residual**2 if layer < len(w2) - 1 else 0.0
        value = bivariate_expectation(phi.value, q12, q11, q22, phi.kinks)
        slope = bivariate_expectation(phi.slope, q12, q11, q22, phi.kinks)
        theta = (
            weights[layer] * w2[layer] * value + bias_weights[layer] * b2[layer] + theta * (skip + w2[layer] * slope)
        )
        # the head adds no skip, so that Σ of the output is its last covariance
        sigma = skip * q12 + w2[layer] * value + b2[layer]
        q11, q22 = (
            skip * q + w2[layer] * expectation(lambda a: phi.value(a) ** 2, q, phi.kinks) + b2[layer]
            for q in (q11, q22)
        )
        q12 = sigma
    return sigma, theta
