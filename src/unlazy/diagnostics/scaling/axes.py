"""Which axes of every parameter grow: its role, found by comparing the uses of two networks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from unlazy.diagnostics.scaling.networks.uses import Trace, Use
from unlazy.diagnostics.scaling.rules import growth_of

ROLES = ("hidden", "input", "readout", "lookup", "vector", "fixed")


@dataclass(frozen=True)
class Axes:
    """Role of one parameter.

    Attributes
    ----------
    role : {"hidden", "input", "readout", "lookup", "vector", "fixed"}
        A linear map whose fan-in and fan-out both grow, or one of them; rows chosen by integers; an entrywise sum or
        product; or no growing axis.
    fan_in, fan_out, features : float
        Exponents of the width of these sizes, see `Use`.
    is_branch : bool
        Whether it makes the output of a residual block.
    multiplier : float
        Exponent of the scalar that multiplies it.
    gain : float
        Exponent of its size at initialization: of ‖W‖_F/√fan_out, or of the RMS of its entries.
    """

    role: str
    fan_in: float = 0.0
    fan_out: float = 0.0
    features: float = 0.0
    is_branch: bool = False
    multiplier: float = 0.0
    gain: float = 0.0


def axes_of(
    widths: Sequence[int], traces: Sequence[Trace], shapes: Sequence[Mapping[str, tuple[int, ...]]],
    roles: Mapping[str, str] | None = None,
) -> dict[str, Axes]:  # fmt: skip
    """The role of every parameter.

    Parameters
    ----------
    widths : sequence of int
        Widths of the networks, several of each with different seeds.
    traces : sequence of Trace
        Their uses.
    shapes : sequence of mapping
        Shapes of all parameters of each.
    roles : mapping of str to str, optional
        What the user says of parameters that are not clear.

    Raises
    ------
    ValueError
        If the role of a parameter is not clear, with its name and what to pass.
    """
    roles = roles or {}
    unknown = [role for role in roles.values() if role not in ROLES]
    if unknown:
        raise ValueError(f"unknown role {unknown[0]!r}: choose from {', '.join(ROLES)}")
    missing = sorted(roles.keys() - shapes[0].keys())
    if missing:
        raise ValueError(f"roles names {missing[0]!r}, which is no parameter; they are {', '.join(shapes[0])}")
    found: dict[str, list[tuple[Use, Axes]]] = {name: [] for name in shapes[0]}
    for i, use in enumerate(traces[0].uses):
        growth = growth_of(widths, [trace.uses[i] for trace in traces])
        for name in use.parameters:
            found[name].append((use, Axes(growth.role, growth.fan_in, growth.fan_out, growth.features, use.is_branch,
                                          growth.multiplier, growth.gain)))  # fmt: skip
    grows = {name: any(some[name] != shapes[0][name] for some in shapes) for name in shapes[0]}
    return {name: _one(name, uses, grows[name], roles.get(name)) for name, uses in found.items()}


def _one(name: str, uses: list[tuple[Use, Axes]], grows: bool, given: str | None) -> Axes:
    """The role of one parameter, if all of its uses agree."""
    if given is not None:
        sizes = {"hidden": (1.0, 1.0, 1.0), "input": (0.0, 1.0, 1.0), "readout": (1.0, 0.0, 0.0),
                 "lookup": (0.0, 1.0, 1.0), "vector": (0.0, 1.0, 1.0), "fixed": (0.0, 0.0, 0.0)}  # fmt: skip
        return Axes(given, *sizes[given], multiplier=uses[0][1].multiplier if uses else 0.0)
    if not grows:
        return Axes("fixed")
    ask = f"pass roles={{{name!r}: ...}} with one of {', '.join(ROLES[:-1])}"
    if not uses:
        raise ValueError(f"{name} grows with the width but takes no part in the outputs on these inputs: {ask}")
    clear = [axes for use, axes in uses if use.kind != "other" and len(use.parameters) == 1]
    if len(clear) < len(uses):
        several = next((use.parameters for use, _ in uses if len(use.parameters) > 1), None)
        why = f"is combined with {', '.join(p for p in several if p != name)}" if several else "enters an operation"
        raise ValueError(f"the role of {name} is not clear, since it {why} before it meets data: {ask}")
    first = clear[0]
    if any(min(abs(size), abs(size - 1)) > 0.1 for size in (first.fan_in, first.fan_out, first.features)):
        raise ValueError(f"the axes of {name} do not grow like the width itself: {ask}")
    if any((axes.role, axes.fan_in, axes.features) != (first.role, first.fan_in, first.features) for axes in clear):
        kinds = " and as ".join(dict.fromkeys(f"{axes.role}" for axes in clear))
        raise ValueError(f"{name} is used as {kinds}, which need different rates: untie it, or {ask}")
    return first
