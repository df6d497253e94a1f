"""Training dynamics of kernel machines: spectral filters, leave-one-out, Gaussian processes [K2, K3, K5, K11]."""
