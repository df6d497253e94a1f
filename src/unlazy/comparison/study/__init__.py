"""The study behind a comparison: contestants, trials, the verdict rules and the final model."""
