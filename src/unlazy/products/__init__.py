"""Gram matrices and matrix products for any kernel: K, K @ V, Kᵀ @ U, gradients and the AGOP."""

from unlazy.products.agop import agop, gradient
from unlazy.products.engines.base import KernelOperator
from unlazy.products.engines.blocked import gram
from unlazy.products.gram_store import gram_to_store
from unlazy.products.multiply import matmul, product, rmatmul

__all__ = ["KernelOperator", "agop", "gradient", "gram", "gram_to_store", "matmul", "product", "rmatmul"]
