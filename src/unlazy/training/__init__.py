"""Features move."""
