"""Gram matrices from blocks of kernel entries: validation, row blocks, symmetric tiles, exact diagonals."""
