"""Measures of a fitted model: risk, subspaces, alignment, kernel drift, scaling exponents."""
