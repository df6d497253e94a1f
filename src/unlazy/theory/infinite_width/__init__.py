"""Kernels of infinitely wide fully connected networks [K7, K8] and tangent kernels of arbitrary functions."""
