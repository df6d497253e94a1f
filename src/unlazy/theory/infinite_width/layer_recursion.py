"""One weight matrix after another: how Σ and Θ of an infinitely wide network grow, any activation [K7, K8, L2].

    Σ^l = weights + bias,   Θ^l = Σ^l + slope · Θ^{l-1}.

What a matrix adds (`Term`) is the activation's matter: theory.infinite_width.homogeneous, theory.activations.duals, and
the fused programs of products, where Σ and Θ are divided by the norms of their points. Operators alone, so that all of
them share this.
"""

from typing import Any, NamedTuple

from jaxtyping import Array


class Layer(NamedTuple):
    """σ_w, σ_b and the weight of the skip of one weight matrix."""

    sigma_w: Array | float
    sigma_b: Array | float
    skip: Array | float


class Term(NamedTuple):
    """What weight matrix l adds to Σ^l through its weights and its biases, and the factor Θ^{l-1} passes with."""

    weights: Any
    bias: Any
    slope: Any


class Counts(NamedTuple):
    """How often the weights and the biases of one matrix count."""

    weights: Array | float
    biases: Array | float


def add(term: Term, before: Any) -> tuple[Any, Any]:
    """Σ^l, and Θ^l from Θ^{l-1} [K7, K8]."""
    sigma = term.weights + term.bias
    return sigma, sigma + before * term.slope


def counted(term: Term, counts: Counts) -> Term:
    """The same with weights and biases counted so often [L1, L2]."""
    return Term(counts.weights * term.weights, counts.biases * term.bias, term.slope)


def add_apart(term: Term, before: list) -> list:
    """K_1 … K_l, one for each matrix, from K_1 … K_{l-1}: K_l = Σ^l Π_{l'>l} slope^{l'}; their sum is Θ^l [L2]."""
    return [k * term.slope for k in before] + [term.weights + term.bias]
