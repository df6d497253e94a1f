"""Formulas from the literature as pure functions of arrays."""
