"""Kernel fixed, find the coefficients: `solve` for one ridge at any size, `path` for all ridges and times."""
