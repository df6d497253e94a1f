"""Compare models with fixed and learned features on a table: a verdict with its evidence, a page and a saved model."""
