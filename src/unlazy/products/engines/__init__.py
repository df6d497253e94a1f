"""Engines that multiply by a kernel matrix: stored, blocked, NumPy, fused on a GPU, sharded over devices."""
