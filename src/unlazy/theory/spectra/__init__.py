"""Spectra of kernels, and the learning curves and scaling laws that follow from them."""
