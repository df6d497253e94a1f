"""The study behind a comparison: candidate models, trials, the rules of the verdict and the final model."""
