"""Linear systems of a network's tangents at its parameters: posterior covariances, influence, evidence [I1, I2]."""
