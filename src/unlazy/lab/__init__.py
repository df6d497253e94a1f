"""Sweeps, store, resume, engines."""
