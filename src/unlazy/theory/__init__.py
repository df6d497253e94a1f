"""Every formula of the sources as pure functions, arrays to arrays."""
