"""Gram matrices and their products."""
