"""Names that earlier versions stored, and what they are called now."""

import re
from collections.abc import Mapping
from typing import TypeVar

V = TypeVar("V")

# glossary: off
EXPERIMENTS = {
    "gp_at_initialisation": "gp_at_initialization",
    "linearisation_error": "linearization_error",
}
WORDS = {
    "centre": "center",
    "centred": "centered",
    "centres": "centers",
    "contestant": "candidate",
    "factorisation": "factorization",
    "learnt": "learned",
    "linearisation": "linearization",
    "linearised": "linearized",
    "normalised": "normalized",
    "parametrisation": "parametrization",
    "regularisation": "regularization",
    "renormalised": "renormalized",
    "standardised": "standardized",
}
"""Words in names of parameters and measures."""
# glossary: on


def current_experiment(identity: str) -> str:
    """Today's identity of an experiment."""
    for old, new in EXPERIMENTS.items():
        identity = re.sub(rf"(?<![A-Za-z]){old}(?![a-z])", new, identity)
    return identity


def current_names(values: Mapping[str, V]) -> dict[str, V]:
    """Parameters or measures of a trial under today's names."""
    return {re.sub(r"[A-Za-z]+", lambda word: WORDS.get(word[0], word[0]), name): v for name, v in values.items()}
