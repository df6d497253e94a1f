"""Activation functions and their Gaussian duals [K7, K8]."""
