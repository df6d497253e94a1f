"""Shared values: data, architectures, activations, precision, memory budget, experiments and claims, errors."""
