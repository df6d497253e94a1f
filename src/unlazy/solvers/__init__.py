"""Kernel fixed, find the coefficients."""
