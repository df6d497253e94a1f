"""Gram matrices and their products, for any kernel: K, K @ V, Kᵀ @ U, gradients and the AGOP."""

from unlazy.products.agop import agop, gradient
from unlazy.products.dense import gram
from unlazy.products.multiply import matmul, product, rmatmul
from unlazy.products.product import Product
from unlazy.products.stored import gram_to_store

__all__ = ["Product", "agop", "gradient", "gram", "gram_to_store", "matmul", "product", "rmatmul"]
