"""Taylor expansions of a function in its parameters [K10, L8], and closed-form training of the linear one [K3]."""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from unlazy.core.arrays import Labels, Points, as_labels, as_points, n_points
from unlazy.core.errors import check_positive_integer
from unlazy.core.pytrees import broadcast_over, split_parameters
from unlazy.networks.tangent import tangent_kernel
from unlazy.theory.dynamics import spectral_filters
from unlazy.theory.finite_width.empirical_ntk import trainable_function
from unlazy.theory.numerics.divided_differences import DESCENT, FLOW
from unlazy.theory.numerics.matrix_functions import MatrixFunction, spectrum_of

Apply = Callable[[PyTree, Array], Array]


class Expansion(eqx.Module):
    """Taylor polynomial of f in its parameters around θ_0; itself a function of (parameters, inputs).

    Order 1 is f(θ_0) + ∇f(θ_0)·δ [K10]; order 2 adds ½ δᵀ∇²f(θ_0)δ [L8], with δ = θ - θ_0; order k has all terms
    d^j/dt^j f(θ_0 + tδ)/j! up to j = k. No Jacobian is formed: each order costs one forward-mode derivative.

    Parameters
    ----------
    apply : callable
        The function f(params, X) to expand.
    start : pytree
        Parameters θ_0 of the expansion point.
    order : int
        Degree of the Taylor polynomial.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from unlazy.networks import Expansion
    >>> f = lambda w, X: jnp.exp(X @ w)
    >>> taylor = Expansion(f, jnp.zeros(1), 2)  # 1 + δx + (δx)²/2
    >>> taylor(jnp.array([2.0]), jnp.array([[1.0], [0.5]])).tolist()
    [5.0, 2.5]
    """

    apply: Apply
    start: PyTree
    order: int = eqx.field(static=True)

    def __call__(self, params: Any, X: Points) -> Float[Array, "n ..."]:
        """Evaluate the Taylor polynomial.

        Parameters
        ----------
        params : pytree
            Parameters θ, with the structure of `start`.
        X : array of shape (n, ...)
            Inputs.

        Returns
        -------
        array of shape (n, ...)
            Values of the polynomial, with the output shape of `apply`.
        """
        X = as_points(X, input_kind="tree")
        f, start = trainable_function(self.apply, self.start)
        move = jax.tree.map(jnp.subtract, split_parameters(params)[0], start)

        def along(base: Any) -> tuple[Array, Array]:
            return jax.jvp(lambda theta: f(theta, X), (base,), (move,))

        if self.order == 1:
            value, slope = along(start)
            return value + slope
        if self.order == 2:
            (value, slope), (_, curvature) = jax.jvp(along, (start,), (move,))
            return value + slope + curvature / 2
        terms = derivatives(lambda t: f(jax.tree.map(lambda p, d: p + t * d, start, move), X), self.order)
        return sum(term / math.factorial(j) for j, term in enumerate(terms))  # type: ignore[return-value]


def derivatives(line: Callable[[Array], Array], order: int) -> tuple[Array, ...]:
    """Return `line` and its derivatives at 0 up to `order`, by nested forward mode."""

    def up_to(k: int) -> Callable[[Array], tuple[Array, ...]]:
        if k == 0:
            return lambda t: (line(t),)

        def grown(t: Array) -> tuple[Array, ...]:
            values, slopes = jax.jvp(up_to(k - 1), (t,), (jnp.ones_like(t),))
            return (*values, slopes[-1])

        return grown

    return up_to(order)(jnp.zeros(()))


def linearize(apply: Apply, params: PyTree) -> Expansion:
    """Linearize a function around its parameters [K10].

    f_lin(θ) = f(θ_0) + ∇f(θ_0)(θ - θ_0). The result is again a function of (parameters, inputs), so `descend`,
    `tangent_kernel` and the measures accept it like f.

    Parameters
    ----------
    apply : callable
        Function f(params, X), such as a `Network`.
    params : pytree
        Parameters θ_0 at which to linearize.

    Returns
    -------
    Expansion
        The linearized function.

    References
    ----------
    Lee et al. (2019), Wide neural networks of any depth evolve as linear models under gradient descent.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> from unlazy import MLP, Network, linearize
    >>> X = jax.random.normal(jax.random.key(0), (60, 3))
    >>> network = Network(MLP(1, width=64), 3)
    >>> params = network.init(jax.random.key(1))
    >>> bool(jnp.allclose(linearize(network, params)(params, X), network(params, X), rtol=1e-5))
    True
    """
    return Expansion(apply, params, 1)


def quadratic_expansion(apply: Apply, params: PyTree) -> Expansion:
    """Expand a function to second order around its parameters [L8].

    Parameters
    ----------
    apply : callable
        Function f(params, X), such as a `Network`.
    params : pytree
        Parameters θ_0 of the expansion point.

    Returns
    -------
    Expansion
        f(θ_0) + ∇f(θ_0)·δ + ½ δᵀ∇²f(θ_0)δ as a function of (parameters, inputs).

    References
    ----------
    Bai and Lee (2020), Beyond linearization.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from unlazy.networks import quadratic_expansion
    >>> f = lambda w, X: (X @ w) ** 2
    >>> quadratic = quadratic_expansion(f, jnp.array([1.0]))  # exact for a quadratic function
    >>> quadratic(jnp.array([3.0]), jnp.array([[2.0]])).tolist()
    [36.0]
    """
    return Expansion(apply, params, 2)


def expand(apply: Apply, params: PyTree, order: int = 1) -> Expansion:
    """Expand a function to any order around its parameters [K10, L8].

    Parameters
    ----------
    apply : callable
        Function f(params, X), such as a `Network`.
    params : pytree
        Parameters θ_0 of the expansion point.
    order : int, default 1
        Degree of the Taylor polynomial.

    Returns
    -------
    Expansion
        The Taylor polynomial as a function of (parameters, inputs).

    Raises
    ------
    ValueError
        If `order` is not a positive integer.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from unlazy.networks import expand
    >>> f = lambda w, X: (X @ w) ** 3
    >>> X, start, w = jnp.array([[1.0]]), jnp.array([1.0]), jnp.array([2.0])
    >>> [float(expand(f, start, order)(w, X)[0]) for order in (1, 2, 3)]
    [4.0, 7.0, 8.0]
    """
    return Expansion(apply, params, check_positive_integer("order", order))


def trained_linearization(
    apply: Apply,
    params: PyTree,
    X: Points,
    y: Labels,
    *,
    time: float | None = None,
    step_size: float | Array | None = None,
    steps: int | None = None,
    rates: PyTree = 1.0,
) -> PyTree:
    """Train the linearized function in closed form and return its parameters [K3].

    Training minimizes the sum ½ Σ (f - y)² over points and outputs:
    θ = θ_0 + R Jᵀ c(K) (y - f_0(X)), where K = J R Jᵀ is the tangent kernel and R the layer-wise rates. On the
    eigenvalues of K, c(λ) = (1 - e^{-λt})/λ for gradient flow and c(λ) = (1 - (1 - ηλ)^s)/λ for s steps of size η.

    Parameters
    ----------
    apply : callable
        Function f(params, X), such as a `Network`.
    params : pytree
        Parameters θ_0 at initialization.
    X : array of shape (n, ...)
        Training inputs.
    y : array of shape (n,) or (n, c)
        Labels, with the shape of the outputs.
    time : float, optional
        Time of gradient flow; infinity is allowed. Pass either `time`, or `step_size` and `steps`.
    step_size : float, optional
        Step size η of gradient descent.
    steps : int, optional
        Number of steps of gradient descent.
    rates : float or pytree, default 1.0
        Layer-wise learning rates: a number, one per layer, or shaped like the parameters.

    Returns
    -------
    pytree
        Parameters of the trained linearization, with the structure of `params`.

    Raises
    ------
    ValueError
        If not exactly one of `time` and (`step_size`, `steps`) is given.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> from unlazy import MLP, Network
    >>> from unlazy.networks import linearize, trained_linearization
    >>> X, y = jnp.array([[-1.0, 0.0], [0.5, 1.0], [2.0, -1.0]]), jnp.array([1.0, -1.0, 0.5])
    >>> network = Network(MLP(1, "relu", width=64), 2)
    >>> start = network.init(jax.random.key(0))
    >>> end = trained_linearization(network, start, X, y, time=float("inf"))
    >>> bool(jnp.allclose(linearize(network, start)(end, X), y, atol=1e-3))  # interpolates the labels
    True
    """
    if (time is None) == (step_size is None) or (step_size is None) != (steps is None):
        raise ValueError(f"pass either time, or step_size and steps; got {time=}, {step_size=}, {steps=}")
    X = as_points(X, input_kind="tree")
    y = as_labels(y, n_points(X))
    K = tangent_kernel(apply, params, X, rates=rates)
    spectrum, raw = spectrum_of(K.reshape(y.size, y.size))
    way, given = (FLOW, [time]) if time is not None else (DESCENT, [step_size, steps])
    c = MatrixFunction(
        way, spectrum, tuple(jnp.asarray(v, K.dtype) for v in given), spectral_filters.rounding_floor(raw)
    )
    f, start = trainable_function(apply, params)
    f0, pull = jax.vjp(lambda theta: f(theta, X), start)
    alpha = spectral_filters.coefficients(spectrum.eigenvectors, c, (y - f0).ravel())
    (gradient,) = pull(alpha.reshape(f0.shape))
    moved = jax.tree.map(lambda p, r, g: p + r * g, start, broadcast_over(rates, start), gradient)
    return eqx.combine(moved, split_parameters(params)[1])
