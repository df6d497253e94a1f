"""Recursive feature machines [D11] as scikit-learn estimators."""
