"""Numerical helpers shared by the formulas: centering, near duplicates, angles, matrix functions."""
