"""Covariances of an infinitely wide network of any architecture, layer by layer [C1-C4].

Novak et al. (2019), Garriga-Alonso, Rasmussen and Aitchison (2019), Arora et al. (2019), Hron et al. (2020).
"""

from unlazy.layers.covariance import attention, combine, pointwise, shaping, weights
from unlazy.layers.covariance.network import Side, grid_of, of_block, surveyed
from unlazy.layers.covariance.state import State, look, of_blocks, propagate, reaches, survey, variances
from unlazy.layers.covariance.weights import weighted

__all__ = [
    "Side", "State", "attention", "combine", "grid_of", "look", "of_block", "of_blocks", "pointwise", "propagate",
    "reaches", "shaping", "survey", "surveyed", "variances", "weighted", "weights",
]  # fmt: skip
