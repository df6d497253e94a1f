"""Tangent kernels of finite networks [K9, L1]: by layer structure for MLPs, by Jacobians for any function.

The gradient of an MLP's output with respect to W^l is an outer product, g_l(x) h_{l-1}(x)ᵀ. Its kernel is therefore an
entrywise product of two Gram matrices, K_l = (m_w² H Hᵀ + m_b²) ∘ (G Gᵀ) [L1]: n² w work, n w memory, no Jacobian.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from unlazy.core.arrays import Points, as_points, dot, einsum
from unlazy.core.errors import did_you_mean
from unlazy.networks.mlp import Network, Parameters
from unlazy.theory.finite_width.empirical_ntk import jacobian_kernels, scales, tangent_product, validate_function

__all__ = ["layer_tangent_kernels", "tangent_kernel", "tangent_product"]

OUTPUTS = ("full", "trace", "diagonal")


def tangent_kernel(
    apply: Callable[[PyTree, Array], Array],
    params: PyTree,
    X: Points,
    Z: Points | None = None,
    *,
    outputs: str = "full",
    rates: PyTree = 1.0,
) -> Float[Array, "n ..."]:
    """Tangent kernel of a finite network, Θ(x, z) = Σ_θ r_θ ∂f(x)/∂θ ∂f(z)/∂θ [K9].

    Arrays of floats in `params` are differentiated; everything else in an Equinox module (functions, settings, None
    after `eqx.partition`) and all collections of Flax variables but "params" are held fixed.

    Parameters
    ----------
    apply : callable
        Function f(params, X). A `Network` uses its layer structure, other functions use Jacobians.
    params : pytree
        Parameters θ.
    X : array of shape (n, ...)
        Points; any shape after the leading axis unless `apply` is a `Network`.
    Z : array of shape (m, ...), optional
        Second set of points; X by default.
    outputs : {"full", "trace", "diagonal"}, default "full"
        For c > 1 outputs: the full kernel (n, c, m, c), its trace over outputs (n, m) or its diagonal (n, m, c).
    rates : float or pytree, default 1.0
        Layer-wise learning rates r: a number, one per layer, or shaped like the parameters. `network.rates` gives the
        kernel that governs training, `only_layers(params, [-1])` the kernel of random features.

    Returns
    -------
    array of shape (n, m), (n, c, m, c) or (n, m, c)
        The kernel; (n, m) for one scalar output.

    Raises
    ------
    ValueError
        If `outputs` is unknown.

    References
    ----------
    Jacot, Gabriel and Hongler (2018), Neural tangent kernel.
    Novak, Sohl-Dickstein and Schoenholz (2022), Fast finite width neural tangent kernel.

    Examples
    --------
    >>> import jax
    >>> from unlazy import MLP, Network, tangent_kernel
    >>> X = jax.random.normal(jax.random.key(0), (60, 3))
    >>> network = Network(MLP(1, width=64), 3)
    >>> tangent_kernel(network, network.init(jax.random.key(1)), X, X[:5]).shape
    (60, 5)
    """
    return sum(layer_tangent_kernels(apply, params, X, Z, outputs=outputs, rates=rates))  # type: ignore[return-value]


def layer_tangent_kernels(
    apply: Callable[[PyTree, Array], Array],
    params: PyTree,
    X: Points,
    Z: Points | None = None,
    *,
    outputs: str = "full",
    rates: PyTree = 1.0,
) -> tuple[Float[Array, "n ..."], ...]:
    """Tangent kernels K_l of the layers, one by one [L1, L2]; their sum is `tangent_kernel`.

    Parameters
    ----------
    apply : callable
        Function f(params, X). A `Network` uses its layer structure, other functions use Jacobians.
    params : pytree
        Parameters θ.
    X : array of shape (n, ...)
        Points; any shape after the leading axis unless `apply` is a `Network`.
    Z : array of shape (m, ...), optional
        Second set of points; X by default.
    outputs : {"full", "trace", "diagonal"}, default "full"
        For c > 1 outputs: the full kernel (n, c, m, c), its trace over outputs (n, m) or its diagonal (n, m, c).
    rates : float or pytree, default 1.0
        Layer-wise learning rates: a number, one per layer, or shaped like the parameters.

    Returns
    -------
    tuple of arrays
        One kernel per layer, that is, per top-level entry of `params` that contains parameters.

    Raises
    ------
    ValueError
        If `outputs` is unknown.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> from unlazy import MLP, Network
    >>> from unlazy.networks import layer_tangent_kernels, tangent_kernel
    >>> X = jnp.array([[-1.0, 0.0], [0.5, 1.0], [2.0, -1.0]])
    >>> network = Network(MLP(2, "relu", width=16), 2)
    >>> params = network.init(jax.random.key(0))
    >>> kernels = layer_tangent_kernels(network, params, X)
    >>> len(kernels), bool(jnp.allclose(sum(kernels), tangent_kernel(network, params, X), rtol=1e-4))
    (3, True)
    """
    if outputs not in OUTPUTS:
        raise ValueError(f"unknown outputs {outputs!r}{did_you_mean(str(outputs), OUTPUTS)}")
    takes = "matrix" if isinstance(apply, Network) else "tree"
    X, Z = as_points(X, input_kind=takes), None if Z is None else as_points(Z, "Z", input_kind=takes)
    if not isinstance(apply, Network):
        validate_function(apply, params, X)
        return jacobian_kernels(apply, params, X, Z, rates, outputs)
    per_layer = scales(rates, params)
    left = _sides(apply, params, X)
    right = left if Z is None else _sides(apply, params, Z)
    kernels = []
    for l, ((H, G), (H2, G2)) in enumerate(zip(left, right)):
        multiplier, rate = apply.scales[l].multiplier, per_layer[l]
        forward = multiplier.weight**2 * rate.weight * dot(H, H2.T)
        forward = forward + multiplier.bias**2 * rate.bias
        kernels.append(_hadamard(forward, G, G2, outputs, apply.mlp.outputs))
    return tuple(kernels)


def _sides(network: Network, params: Parameters, X: Float[Array, "n d"]) -> list[tuple[Array, Array | None]]:
    """Return (input of layer l, derivative of the outputs in f^l) for every layer; None is the identity (readout).

    Back-propagation from the outputs: ∂f/∂f^{l-1} = φ'(f^{l-1}) ∘ (m_w Wᵀ ∂f/∂f^l) + s ∂f/∂f^l.
    """
    scales, depth, phi = network.scales, network.mlp.depth, network.mlp.activation
    found = network.preactivations(params, X)[:-1]
    hidden, slopes = zip(*(jax.jvp(phi, (f,), (jnp.ones_like(f),)) for f in found))
    weight = scales[-1].multiplier.weight * params[-1].weight
    G = slopes[-1][:, None, :] * weight.T[None, :, :]
    sides: list[tuple[Array, Array | None]] = [(hidden[-1], None), (X if depth == 1 else hidden[-2], G)]
    for l in range(depth - 1, 0, -1):
        weight = scales[l].multiplier.weight * params[l].weight
        back = dot(G.reshape(-1, G.shape[-1]), weight.T).reshape(*G.shape[:2], -1)
        G = slopes[l - 1][:, None, :] * back + (network.mlp.residual * G if network.mlp.skips else 0)
        sides.append((X if l == 1 else hidden[l - 2], G))
    return sides[::-1]


def _hadamard(A: Float[Array, "n m"], G: Array | None, G2: Array | None, outputs: str, count: int) -> Array:
    """Return A ∘ (G G2ᵀ) for pairs of outputs, their diagonal or their trace; G = None is the identity (readout)."""
    if G is None or G2 is None:
        if outputs == "full" and count > 1:
            return A[:, None, :, None] * jnp.eye(count, dtype=A.dtype)[None, :, None, :]
        if outputs == "diagonal" and count > 1:
            return jnp.broadcast_to(A[:, :, None], (*A.shape, count))
        return A * count
    (n, c, w), m = G.shape, G2.shape[0]
    if outputs == "diagonal" and c > 1:
        return A[:, :, None] * einsum("icw,jcw->ijc", G, G2)
    if outputs == "full" and c > 1:
        gram = dot(G.reshape(n * c, w), G2.reshape(m * c, w).T)
        return A[:, None, :, None] * gram.reshape(n, c, m, c)
    return A * dot(G.reshape(n, c * w), G2.reshape(m, c * w).T)
