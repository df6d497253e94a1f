"""Finite networks: parameters, forward pass, linearisation, tangent kernels."""
