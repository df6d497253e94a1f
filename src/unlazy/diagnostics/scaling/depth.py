"""Local rules of depth scaling [T4]: residual blocks h + L^{-a} F(h) that stay of order 1 together, and not lazy."""

from collections.abc import Iterable, Sequence

from unlazy.diagnostics.scaling.networks.uses import Use
from unlazy.diagnostics.scaling.rules import LIMITS, Finding, Measured, Quantity
from unlazy.diagnostics.scaling.slopes import fit_slope


def find_in_depth(runs: Sequence[Measured]) -> list[Finding]:
    """Exponents of the depth of all uses that are repeated in every block.

    Parameters
    ----------
    runs : sequence of Measured
        Runs at two or more depths.
    """
    lists = _growing_lists(runs)
    blocks = [_by_kind(run.trace.uses, lists) for run in runs]
    repeated = [name for name in blocks[0] if all(len(uses.get(name, ())) > 0 for uses in blocks)]
    repeated = [name for name in repeated if len({len(uses[name]) for uses in blocks}) > 1]
    depths = [run.sizes["depth"] for run in runs]
    found = []
    for name in repeated:
        groups = [uses[name] for uses in blocks]
        if groups[0][0].is_branch:
            # outputs of blocks are independent at the start, their changes are not
            start = [sum(use.gain**2 for use in group) ** 0.5 for group in groups]
            change = [sum(use.contribution for use in group) for group in groups]
            found.append(_finding(name, "initialization", "branch", depths, start, low=False))
            found.append(_finding(name, "rate", "branch", depths, change, low=False))
        moved = [sum(map(_relative_change, group)) / len(group) for group in groups]
        found.append(_finding(name, "rate", "block", depths, moved, low=True))
    return sorted(found, key=lambda finding: (not finding.wrong, -finding.severity))


def _relative_change(use: Use) -> float:
    """Change of a block by one of its parameters, without the factor of its branch, which may be part of a weight."""
    size = use.frobenius_gain if use.kind == "matrix" else use.gain
    return use.contribution / (size if use.is_branch and size > 0 else use.multiplier)


def _finding(
    name: str, quantity: Quantity, role: str, depths: Sequence[int], values: Sequence[float], low: bool
) -> Finding:
    """Flag growth of what a branch adds, and decay of what a block learns."""
    slope = fit_slope(depths, values)
    limit = LIMITS[quantity]
    wrong = slope.known and (slope.value < -limit if low else slope.value > limit)
    return Finding(name, quantity, role, slope, wrong, axis="depth")


def numbered_entries(names: Iterable[str]) -> dict[str, set[str]]:
    """Numbers that follow each prefix of dotted names."""
    found: dict[str, set[str]] = {}
    for name in names:
        steps = name.split(".")
        for i, step in enumerate(steps):
            if step.isdigit():
                found.setdefault(".".join(steps[:i]), set()).add(step)
    return found


def _growing_lists(runs: Sequence[Measured]) -> frozenset[str]:
    """Prefixes that a number follows, more of them in deeper networks."""
    entries = [numbered_entries(use.name for use in run.trace.uses) for run in runs]
    return frozenset(p for p in entries[0] if len({len(found.get(p, ())) for found in entries}) > 1)


def _by_kind(uses: Sequence[Use], lists: frozenset[str]) -> dict[str, list[Use]]:
    """Uses by name with the number of the block left out."""
    found: dict[str, list[Use]] = {}
    for use in uses:
        steps = use.name.split(".")
        starred = ["*" if step.isdigit() and ".".join(steps[:i]) in lists else step for i, step in enumerate(steps)]
        found.setdefault(".".join(starred), []).append(use)
    return found
