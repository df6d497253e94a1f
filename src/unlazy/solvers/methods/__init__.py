"""Methods of `solve`, one module each, and the registry of their names."""
