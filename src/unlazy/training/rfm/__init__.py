"""Recursive feature machines [D11]: alternate kernel regression with updates of the metric."""
