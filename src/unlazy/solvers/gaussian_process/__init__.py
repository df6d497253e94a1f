"""Gaussian processes: priors, posteriors, marginal likelihood and ensembles of trained networks [K5, K11]."""
