"""Recursion of Σ and Θ over the weight matrices of an infinitely wide network, for any activation [K7, K8, L2].

    Σ^l = weights + bias,   Θ^l = Σ^l + slope · Θ^{l-1}.

The contribution of a weight matrix (`LayerTerm`) depends on the activation: theory.infinite_width.homogeneous,
theory.activations.duals, and the fused programs of products, where Σ and Θ are divided by the norms of their points.
Uses operators only, so that all of them share this code.
"""

from typing import Any, NamedTuple

from jaxtyping import Array


class LayerMoments(NamedTuple):
    """σ_w, σ_b and the skip weight of one weight matrix."""

    sigma_w: Array | float
    sigma_b: Array | float
    skip: Array | float


class LayerTerm(NamedTuple):
    """Contribution of weight matrix l to Σ^l by its weights and by its biases, and the factor of Θ^{l-1}."""

    weights: Any
    bias: Any
    slope: Any


class TermWeights(NamedTuple):
    """Factors of the weights and of the biases of one matrix in the tangent kernel."""

    weights: Array | float
    biases: Array | float


def accumulate(term: LayerTerm, before: Any) -> tuple[Any, Any]:
    """Σ^l, and Θ^l from Θ^{l-1} [K7, K8]."""
    sigma = term.weights + term.bias
    return sigma, sigma + before * term.slope


def weight_term(term: LayerTerm, counts: TermWeights) -> LayerTerm:
    """The term with its weights and biases multiplied by the given factors [L1, L2]."""
    return LayerTerm(counts.weights * term.weights, counts.biases * term.bias, term.slope)


def accumulate_per_layer(term: LayerTerm, before: list) -> list:
    """K_1 … K_l from K_1 … K_{l-1}, one per weight matrix: K_l = Σ^l Π_{l'>l} slope^{l'}; their sum is Θ^l [L2]."""
    return [k * term.slope for k in before] + [term.weights + term.bias]
