"""The layer protocol: shapes, covariance propagation, finite evaluation, windows and parametrizations."""
