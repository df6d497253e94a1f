"""Gaussian processes: priors, posteriors, evidence and ensembles of trained networks [K5, K11]."""
