"""Solvers for a fixed kernel: `solve` for one ridge at any size, `decompose` for all ridges and training times."""
