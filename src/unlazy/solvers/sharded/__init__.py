"""Factorizations with rows sharded over devices."""
