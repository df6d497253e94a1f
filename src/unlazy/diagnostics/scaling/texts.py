"""Sentences about exponents."""

from unlazy.diagnostics.scaling.rules import Finding


def label(finding: Finding) -> str:
    """The measured quantity, with the axis if that is not the width."""
    return finding.quantity if finding.axis == "width" else f"{finding.quantity}, depth"


def rounded(value: float) -> float:
    """The nearest multiple of 1/4, which exponents of scaling rules are."""
    return round(4 * value) / 4


def describe(finding: Finding) -> str:
    """What an exponent beyond its limit does."""
    n, e = ("n" if finding.axis == "width" else "L"), f"{rounded(finding.excess.value):+g}".lstrip("+")
    up = finding.excess.value > 0
    if finding.quantity == "attention":
        change = "Unstable: the logits of {} grow like {}" if up else "Vanishing: the logits of {} shrink like {}"
        return change.format(f"the attention in {finding.name or 'the network'}", f"{n}^{e}")
    if finding.quantity == "initialization":
        return f"{'Unstable' if up else 'Vanishing'}: the initial output of {finding.name} " + (
            f"{'grows' if up else 'shrinks'} like {n}^{e}" if finding.role != "readout" else
            f"is {n}^{e} too {'large' if up else 'small'}"
        )  # fmt: skip
    if up:
        return f"Unstable: the update of {finding.name} grows like {n}^{e}"
    return f"Lazy: {finding.name} stops moving like {n}^{e}"


def remedy(finding: Finding, base: int) -> str:
    """The multiplier that mends an exponent."""
    n, e = ("n" if finding.axis == "width" else "L"), f"{-rounded(finding.excess.value):g}"
    where = f"({n}/{base})^{e}" if finding.axis == "width" else f"{n}^{e}"
    if finding.quantity == "attention":
        return f"{finding.name or 'attention'}: divide q·k by the dimension of a head (now: multiply it by {where})"
    if finding.quantity == "initialization":
        return f"{finding.name}: multiply its initial value by {where}"
    return f"{finding.name}: multiply its learning rate by {where}"
