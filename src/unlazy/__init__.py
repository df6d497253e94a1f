"""unlazy: kernels, infinitely wide networks, and the feature learning beyond them."""

__version__ = "0.1.0"
