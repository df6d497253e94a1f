"""What is measured of a fit: risk, subspaces, alignment, drift, scaling exponents."""
