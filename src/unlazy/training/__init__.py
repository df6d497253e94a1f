"""Training with feature learning: gradient descent, one-step training, recursive feature machines, the rich limit."""
