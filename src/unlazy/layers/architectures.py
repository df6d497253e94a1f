"""Network descriptions with a name in the literature."""

from jaxtyping import Array

from unlazy.layers.combine import Serial, serial
from unlazy.layers.conv import Conv
from unlazy.layers.dense import Dense
from unlazy.layers.pooling import AvgPool, GlobalAvgPool
from unlazy.layers.protocol.base import Layer
from unlazy.theory.infinite_width.architecture import SQRT2

MYRTLE = {5: (2, 1, 1), 7: (2, 2, 2), 10: (3, 3, 3)}
"""Convolutions of each of the three stages."""


def myrtle(depth: int, sigma_w: float | Array = SQRT2, sigma_b: float | Array = 0.0) -> Serial:
    """Myrtle network with 5, 7 or 10 layers of weights [C1, C2].

    3 × 3 convolutions with zero padding and ReLU in three stages of (2, 1, 1), (2, 2, 2) or (3, 3, 3); 2 × 2 average
    pooling between stages, global average pooling, then a dense layer. Images are (n, height, width, channels), from 4
    × 4 pixels.

    Parameters
    ----------
    depth : {5, 7, 10}
        Number of layers with weights.
    sigma_w : float, default √2
        Standard deviation of the weights, in units of 1/√fan-in.
    sigma_b : float, default 0
        Standard deviation of the biases.

    Returns
    -------
    Serial
        The description.

    References
    ----------
    Shankar et al. (2020), Neural kernels without tangents.

    Examples
    --------
    >>> from unlazy import NTK
    >>> from unlazy.layers import Shape, myrtle
    >>> kernel = NTK(myrtle(5))
    >>> myrtle(10).after(Shape((32, 32), 3)).positions
    ()
    """
    if depth not in MYRTLE:
        raise ValueError(f"Myrtle networks have 5, 7 or 10 layers of weights, got {depth!r}")
    stages: list[list[Layer | str]] = [[Conv((3, 3), sigma_w, sigma_b), "relu"] * count for count in MYRTLE[depth]]
    first, second, third = stages
    end = (GlobalAvgPool(), Dense(sigma_w, sigma_b))
    pool = AvgPool((2, 2))  # type: ignore[call-arg]
    return serial(*first, pool, *second, pool, *third, *end)
