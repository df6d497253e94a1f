"""Shared utilities: arrays, devices, precision, memory budget, threads, files, errors and fit results."""
