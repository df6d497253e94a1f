"""Convex programs: nuclear-norm regression [L6] and the convex ReLU network."""
