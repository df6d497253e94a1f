"""Saving and loading fitted estimators without pickle: safetensors arrays and a JSON header."""
