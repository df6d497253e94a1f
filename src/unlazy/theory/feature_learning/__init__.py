"""Formulas of feature learning: gradients, AGOP, mean-field limits, bounds."""
