"""Predictions of saved models with NumPy and SciPy alone: no JAX, no scikit-learn, nothing to compile."""

from unlazy.serving.predictor import Predictor, load_predictor

__all__ = ["Predictor", "load_predictor"]
