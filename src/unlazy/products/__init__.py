"""Gram matrices and their products, for any kernel: K, K @ V, Kᵀ @ U, gradients and the AGOP."""

from unlazy.products.agop import agop, gradient
from unlazy.products.dense import gram
from unlazy.products.multiply import matmul, product, rmatmul
from unlazy.products.product import Product

__all__ = ["Product", "agop", "gradient", "gram", "matmul", "product", "rmatmul"]
