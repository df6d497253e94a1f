"""Sentences about exponents."""

import math

from unlazy.diagnostics.scaling.rules import Finding


def label(finding: Finding) -> str:
    """The measured quantity, with the axis if that is not the width."""
    return finding.quantity if finding.axis == "width" else f"{finding.quantity}, depth"


def rounded(value: float) -> float:
    """The nearest multiple of 1/2, which exponents of scaling rules are; of 1/4 for small ones."""
    return math.copysign(math.floor(2 * abs(value) + 0.5) / 2, value) if abs(value) > 0.375 else round(4 * value) / 4


def power(symbol: str, exponent: float) -> str:
    """A power, without an exponent of 1."""
    return symbol if exponent == 1 else f"{symbol}^{exponent:g}"


def describe(finding: Finding) -> str:
    """What an exponent beyond its limit does."""
    up, exponent = finding.excess.value > 0, rounded(finding.excess.value)
    size = power("n" if finding.axis == "width" else "L", exponent)
    if finding.quantity == "attention":
        change = "Unstable: the logits of {} grow like {}" if up else "Vanishing: the logits of {} shrink like {}"
        return change.format(f"the attention in {finding.name or 'the network'}", size)
    if finding.quantity == "initialization":
        if finding.role == "readout":
            return f"Unstable: the initial output of {finding.name} is {size} too large"
        change = "Unstable: the initial output of {} grows like {}"
        return (change if up else "Vanishing: the initial output of {} shrinks like {}").format(finding.name, size)
    if up:
        return f"Unstable: the update of {finding.name} grows like {size}"
    return f"Lazy: {finding.name} stops moving like {size}"


def remedy(finding: Finding, base: int) -> str:
    """The multiplier that mends an exponent, 1 at the base size."""
    symbol = "n" if finding.axis == "width" else "L"
    where = power(f"({symbol}/{base})", -rounded(finding.excess.value))
    if finding.quantity == "attention":
        return f"{finding.name or 'attention'}: divide q·k by the dimension of a head (now: multiply it by {where})"
    if finding.quantity == "initialization":
        return f"{finding.name}: multiply its initial value by {where}"
    return f"{finding.name}: multiply its learning rate by {where}"
