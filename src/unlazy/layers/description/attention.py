"""Layers in which positions see each other by their contents, or along the edges of a graph [C4, C1]."""

from typing import Any

import equinox as eqx

from unlazy.core.errors import nearest
from unlazy.layers.description.base import Layer, Shape
from unlazy.theory.infinite_width.architecture import checked

WEIGHINGS = ("softmax", "identity")


def _number(what: str) -> Any:
    return lambda value: checked(what, value)


class SelfAttention(Layer):
    """f → σ_o W_O (σ_v W_V f ζ(scores)ᵀ) + σ_b b, scores = f_p·f_q/d through tied queries and keys (W_Q = W_K) [C4].

    `weighing` ζ is softmax over q, or the identity. `sigma_query_key` is σ_q σ_k, the factor of the scores;
    `sigma_position` the size of an independent random embedding of every position that is added in the scores alone.
    Hron, Bahri, Sohl-Dickstein and Novak (2020).
    """

    sigma_value: Any = eqx.field(default=1.0, converter=_number("sigma_value"))
    sigma_out: Any = eqx.field(default=1.0, converter=_number("sigma_out"))
    sigma_b: Any = eqx.field(default=0.0, converter=_number("sigma_b"))
    sigma_query_key: Any = eqx.field(default=1.0, converter=_number("sigma_query_key"))
    sigma_position: Any = eqx.field(default=0.0, converter=_number("sigma_position"))
    weighing: str = eqx.field(default="softmax", static=True)
    width: int | None = eqx.field(default=None, static=True)

    def __check_init__(self) -> None:
        if self.weighing not in WEIGHINGS:
            raise ValueError(f"unknown weighing {self.weighing!r}{nearest(str(self.weighing), WEIGHINGS)}")

    @property
    def weighs(self) -> bool:
        return True

    def after(self, shape: Shape) -> Shape:
        if len(shape.positions) != 1:
            raise ValueError(
                f"needs one axis of positions (tokens), got {len(shape.positions)}: points of shape tokens × channels"
            )
        return Shape(shape.positions, self.width)


class Aggregate(Layer):
    """f_j → Σ_i A_ij f_i over the edges i → j of a graph; points are pairs (nodes × channels, A of nodes × nodes).

    All graphs have the same number of nodes: pad smaller ones with nodes without edges.
    """

    def after(self, shape: Shape) -> Shape:
        if len(shape.positions) != 1:
            raise ValueError(f"needs one axis of positions (nodes), got {len(shape.positions)}")
        return shape
