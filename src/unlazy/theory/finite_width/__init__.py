"""Tangent kernels of networks of finite width."""
