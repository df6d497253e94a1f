"""Kernels of neural networks: infinitely wide (NNGP, NTK), finite (tangent kernels), and trained (adaptive)."""
