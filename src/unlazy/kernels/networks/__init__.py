"""Kernels of networks: NNGP and NTK of any architecture, empirical tangent kernels, flips, adaptive kernels."""
