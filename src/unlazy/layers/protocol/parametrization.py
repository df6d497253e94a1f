"""Parametrizations [L1]: the same architecture, four ways to share scale between multipliers, start and step sizes.

A layer computes f = m_w W h + m_b b with entries of W and b started at standard deviation s and moved by r times the
step size. Functions at initialization agree in law for NTK and standard; training differs through m² r, the weight α_l
of a layer's tangent kernel.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
from jaxtyping import Array, PyTree

from unlazy.core.errors import did_you_mean
from unlazy.core.pytrees import split_parameters
from unlazy.theory.infinite_width.architecture import MLP

PARAMETRIZATIONS = ("ntk", "standard", "mean_field", "mup")


class WeightBias(NamedTuple):
    """Weight matrix and biases of one layer, or one number for each of the two.

    Parameters
    ----------
    weight : array of shape (fan-in, fan-out), or float
        Weights. A column is a neuron, and X @ weight needs no transpose (2× on the CPU).
    bias : array of shape (fan-out,), or float
        Biases.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from unlazy.networks import WeightBias
    >>> layer = WeightBias(weight=jnp.ones((3, 2)), bias=jnp.zeros(2))
    >>> (jnp.ones((1, 3)) @ layer.weight + layer.bias).tolist()
    [[3.0, 3.0]]
    """

    weight: Any
    bias: Any


class Scales(NamedTuple):
    """Forward multipliers, standard deviations of the start and layer-wise rates of one layer."""

    multiplier: WeightBias
    deviation: WeightBias
    rate: WeightBias


def layer_scales(
    mlp: MLP, inputs: int, parametrization: str = "ntk", output_scale: float | Array = 1.0
) -> tuple[Scales, ...]:
    """Scales of every layer, for gradient descent (rates for other optimizers: `adam_rates`).

    With fan-in v, width w, and the head's values in brackets:

    ==========  ==============  ===========  =========================================
    name        m_w             s_w          rate of W (of b)
    ==========  ==============  ===========  =========================================
    ntk         σ_w/√v          1            1 (1)                  Jacot et al. 2018
    standard    1               σ_w/√v       1 (1)
    mean_field  σ_w/√v [σ_w/w]  1            w (w, head 1)          Mei et al. 2018
    mup         1               σ_w/√v [/w]  w, 1, …, [1/w] (w, 1)  Yang, Hu 2021
    ==========  ==============  ===========  =========================================

    `output_scale` α multiplies the head and divides every rate by α² (Chizat, Oyallon, Bach 2019): α → ∞ is lazy.
    """
    check_parametrization(parametrization)
    width, last = _width(mlp), mlp.depth
    rows = []
    for l, (sigma_w, sigma_b) in enumerate(zip(mlp.sigma_w, mlp.sigma_b)):
        fan_in = inputs if l == 0 else width
        spread = sigma_w / (math.sqrt(fan_in) if l > 0 or mlp.scale_input else 1.0)
        head = l == last
        if parametrization == "ntk":
            row = Scales(WeightBias(spread, sigma_b), WeightBias(1.0, 1.0), WeightBias(1.0, 1.0))
        elif parametrization == "standard":
            row = Scales(WeightBias(1.0, 1.0), WeightBias(spread, sigma_b), WeightBias(1.0, 1.0))
        elif parametrization == "mean_field":
            multiplier = WeightBias(spread / math.sqrt(width) if head else spread, sigma_b)
            row = Scales(multiplier, WeightBias(1.0, 1.0), WeightBias(float(width), 1.0 if head else float(width)))
        else:
            deviation = WeightBias(spread / math.sqrt(width) if head else spread, sigma_b)
            rate = WeightBias(1.0 / width if head else float(width) if l == 0 else 1.0, 1.0 if head else float(width))
            row = Scales(WeightBias(1.0, 1.0), deviation, rate)
        if head:
            row = row._replace(multiplier=WeightBias(*(output_scale * m for m in row.multiplier)))
        rows.append(row._replace(rate=WeightBias(*(r / output_scale**2 for r in row.rate))))
    return tuple(rows)


def adam_rates(mlp: MLP, inputs: int) -> tuple[WeightBias, ...]:
    """Layer-wise rates of Adam under the maximal update parametrization: 1 at the input and biases, 1/w elsewhere.

    Adam's step has size 1 per entry whatever the gradient, so a matrix with fan-in w moves its output w times too far.

    Parameters
    ----------
    mlp : MLP
        Architecture with a finite width w.
    inputs : int
        Input dimension; the rates do not depend on it.

    Returns
    -------
    tuple of WeightBias
        Rates of the weights and the biases, one entry per layer.

    Raises
    ------
    ValueError
        If the width of `mlp` is None.

    Examples
    --------
    >>> from unlazy import MLP
    >>> from unlazy.networks import adam_rates
    >>> [rate.weight for rate in adam_rates(MLP(2, width=100), 3)]
    [1.0, 0.01, 0.01]
    """
    del inputs
    return tuple(WeightBias(1.0 if l == 0 else 1.0 / _width(mlp), 1.0) for l in range(mlp.depth + 1))


def only_layers(params: PyTree, layers: Sequence[int]) -> PyTree:
    """Rates 1 for the chosen layers and 0 for the others.

    Parameters
    ----------
    params : pytree
        Parameters; each top-level entry with parameters is a layer.
    layers : sequence of int
        Indices of the chosen layers; -1 is the last.

    Returns
    -------
    pytree
        One rate per top-level entry of `params`, for the argument `rates` of training and of `tangent_kernel`.

    Raises
    ------
    ValueError
        If `layers` is empty or an index is out of range.

    Examples
    --------
    >>> import jax
    >>> from unlazy import MLP, Network
    >>> from unlazy.networks import only_layers
    >>> params = Network(MLP(2, width=4), 3).init(jax.random.key(0))
    >>> only_layers(params, [-1])
    (0.0, 0.0, 1.0)
    """
    moving, _ = split_parameters(params)
    entries, shape = jax.tree.flatten(moving, is_leaf=lambda part: part is not moving)
    places = [i for i, entry in enumerate(entries) if jax.tree.leaves(entry)]
    wrong = [l for l in layers if not -len(places) <= l < len(places)]
    if wrong or not layers:
        raise ValueError(f"layers must name some of 0 … {len(places) - 1} (or -1 for the last), got {tuple(layers)}")
    chosen = {places[l] for l in layers}
    return jax.tree.unflatten(shape, [1.0 if i in chosen else 0.0 for i in range(len(entries))])


def check_parametrization(name: str) -> None:
    """Raise ValueError for an unknown parametrization."""
    if name not in PARAMETRIZATIONS:
        raise ValueError(f"unknown parametrization {name!r}{did_you_mean(str(name), PARAMETRIZATIONS)}")


def _width(mlp: MLP) -> int:
    if mlp.width is None:
        raise ValueError("a finite network needs a width: MLP(..., width=512); got width None")
    return mlp.width
