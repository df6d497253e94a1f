"""Kernels in plain NumPy, from their definitions and from differences of inputs; no code of the library.

Arithmetic is `longdouble` (64 bits of mantissa on x86-64, 113 on aarch64, 53 where there is no more): arccos near 1
loses half of the digits, and half of these is still under the rounding of float64's own square roots.
"""

import math

import numpy as np

LONG = np.longdouble
PI = LONG(math.pi) + LONG(1.2246467991473532e-16)


def distances(X, Z):
    """‖x-z‖ of all pairs."""
    return np.sqrt(((X[:, None] - Z[None]) ** 2).sum(-1))


def _cosine(X, Z):
    """cos of the angle, norms beside it; zero vectors are at right angles to all."""
    x, z = np.sqrt((X * X).sum(1)), np.sqrt((Z * Z).sum(1))
    size = x[:, None] * z[None]
    return np.clip(np.divide(X @ Z.T, size, out=np.zeros_like(size), where=size > 0), -1, 1), x[:, None], z[None]


def gaussian(X, Z, h):
    return np.exp(-(distances(X, Z) ** 2) / (2 * h * h))


def laplace(X, Z, h):
    return np.exp(-distances(X, Z) / h)


def matern(X, Z, nu, h):
    s = np.sqrt(LONG(2 * nu)) * distances(X, Z) / h
    return {0.5: 1, 1.5: 1 + s, 2.5: 1 + s + s * s / 3}[nu] * np.exp(-s)


def rational_quadratic(X, Z, h, mixture):
    return (1 + distances(X, Z) ** 2 / (2 * mixture * h * h)) ** (-LONG(mixture))


def product_laplace(X, Z, h):
    return np.exp(-np.abs(X[:, None] - Z[None]).sum(-1) / h)


def polynomial(X, Z, degree, offset):
    return (X @ Z.T + offset) ** degree


def arc_cosine(X, Z, order):
    c, x, z = _cosine(X, Z)
    t = np.arccos(c)
    s = np.sin(t)
    J = {0: PI - t, 1: s + (PI - t) * c, 2: 3 * s * c + (PI - t) * (1 + 2 * c * c)}[order]
    return (x * z) ** order * J / PI


def infinite_width(X, Z, depth, activation, sigma_w, sigma_b):
    """(NNGP, NTK) by the recursion [K7, K8] on Σ(x,z), Σ(x,x), Σ(z,z)."""
    d, w, b = X.shape[1], LONG(sigma_w) ** 2, LONG(sigma_b) ** 2
    xz = w * (X @ Z.T) / d + b
    xx, zz = w * (X * X).sum(1)[:, None] / d + b, w * (Z * Z).sum(1)[None] / d + b
    theta = xz
    dual = {"relu": _relu, "erf": _error_function}[activation]
    for _ in range(depth):
        value, slope = dual(xz, xx, zz)
        theta = w * value + b + w * slope * theta
        at_x, at_z = dual(xx, xx, xx)[0], dual(zz, zz, zz)[0]
        xz, xx, zz = w * value + b, w * at_x + b, w * at_z + b
    return xz, theta


def _relu(xz, xx, zz):
    size = np.sqrt(xx * zz)
    c = np.clip(np.divide(xz, size, out=np.zeros_like(size), where=size > 0), -1, 1)
    t = np.arccos(c)
    return size * (np.sin(t) + (PI - t) * c) / (2 * PI), (PI - t) / (2 * PI)


def _error_function(xz, xx, zz):
    # Williams (1997); Cov erf(a) erf(b) = (2/π) arcsin(2xz/√((1+2xx)(1+2zz)))
    left, right = 1 + 2 * xx, 1 + 2 * zz
    ratio = np.clip(2 * xz / np.sqrt(left * right), -1, 1)
    # (1+2xx)(1+2zz) - 4xz², without the digits that ones lose beside norms of 1e20
    gap = 1 + 2 * (xx + zz) + 4 * np.maximum(xx * zz - xz * xz, 0)
    return 2 / PI * np.arcsin(ratio), 4 / PI / np.sqrt(gap)


def ridge(K, y, rho):
    """(K + ρI)⁻¹ y."""
    return np.linalg.solve(K + rho * np.eye(len(K)), y)


def with_intercept(K, y, rho):
    """α and b of min Σ(f + b - y)² + ρ‖f‖²."""
    n = len(K)
    border = np.block([[K + rho * np.eye(n), np.ones((n, 1))], [np.ones((1, n)), np.zeros((1, 1))]])
    found = np.linalg.solve(border, np.concatenate([y, [0.0]]))
    return found[:n], found[n]
