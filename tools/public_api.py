"""The public names of unlazy: those of `__all__` of the package and of its public subpackages."""

import inspect
from importlib import import_module
from typing import Any

PACKAGES = {
    "unlazy": "Top level",
    "unlazy.kernels": "Kernels",
    "unlazy.layers": "Layers of network descriptions",
    "unlazy.networks": "Finite networks",
    "unlazy.products": "Gram matrices and products",
    "unlazy.solvers": "Solvers: fixed kernel",
    "unlazy.training": "Training: features move",
    "unlazy.estimators": "scikit-learn estimators",
    "unlazy.measures": "Measures",
    "unlazy.tasks": "Tasks: distributions with a known answer",
    "unlazy.lab": "Laboratory",
}
"""Public packages and the titles of their sections in the reference."""


def public_names(package: str) -> dict[str, Any]:
    """Functions and classes that a package lists in `__all__`, by name."""
    module = import_module(package)
    named = {name: getattr(module, name) for name in sorted(module.__all__)}
    return {name: value for name, value in named.items() if inspect.isclass(value) or inspect.isroutine(value)}


def documented() -> dict[str, Any]:
    """Every public function and class once, under the shortest path that leads to it."""
    found: dict[str, Any] = {}
    seen: set[int] = set()
    for package in PACKAGES:
        for name, value in public_names(package).items():
            if id(value) not in seen:
                seen.add(id(value))
                found[f"{package}.{name}"] = value
    return found
