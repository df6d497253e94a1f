"""Descriptions that have a name in the literature."""

from typing import Any

from unlazy.layers.description.base import Layer
from unlazy.layers.description.combine import Serial, serial
from unlazy.layers.description.shaping import AvgPool, GlobalAvgPool
from unlazy.layers.description.weights import Conv, Dense
from unlazy.theory.infinite_width.architecture import SQRT2

MYRTLE = {5: (2, 1, 1), 7: (2, 2, 2), 10: (3, 3, 3)}
"""Convolutions of each of the three stages."""


def myrtle(depth: int, sigma_w: Any = SQRT2, sigma_b: Any = 0.0) -> Serial:
    """The Myrtle network with 5, 7 or 10 layers of weights [C1, C2].

    3 × 3 convolutions with zeros outside, each followed by ReLU, in three stages of (2, 1, 1), (2, 2, 2) or (3, 3, 3);
    means of 2 × 2 pixels between stages, the mean of all pixels after the last, then a dense layer. Images are
    (n, height, width, channels), from 4 × 4 pixels on. Shankar et al. (2020), Neural kernels without tangents.

    >>> kernel = NTK(myrtle(5))
    >>> print(myrtle(10).after(Shape((32, 32), 3)).positions)
    ()
    """
    if depth not in MYRTLE:
        raise ValueError(f"Myrtle networks have 5, 7 or 10 layers of weights, got {depth!r}")
    stages: list[list[Layer | str]] = [[Conv((3, 3), sigma_w, sigma_b), "relu"] * count for count in MYRTLE[depth]]
    first, second, third = stages
    end = (GlobalAvgPool(), Dense(sigma_w, sigma_b))
    pool = AvgPool((2, 2))  # type: ignore[call-arg]
    return serial(*first, pool, *second, pool, *third, *end)
