"""Preprocessing: validation, encoding of tables, scaling of columns and whitening of images."""
