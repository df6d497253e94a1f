"""What is measured of a network at one width: every operation in which a parameter meets data.

A parameter may meet data directly (``x @ W``), as a view (``W.T``), scaled (``W / sqrt(n)``) or normalized
(``g v / |v|``), and more than once (a tied embedding). Each meeting is one use, with the value that takes part there,
called W below. Scalars that multiply the input or the output of a use are part of it: m is their product, so that
``x @ W / n``, ``(x / n) @ W`` and ``x @ (W / n)`` are measured alike.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

Kind: TypeAlias = Literal["matrix", "lookup", "vector", "other"]
Number: TypeAlias = Any
"""A float, or a scalar of JAX while a function is traced."""


@dataclass
class Use:
    """One operation of a parameter and data, at initialization and with the change of the parameter in training.

    Attributes
    ----------
    parameters : tuple of str
        Names of the parameters that W is computed from.
    kind : {"matrix", "lookup", "vector", "other"}
        Linear map, rows chosen by integers, entrywise sum or product, or an operation that is not known.
    fan_in, fan_out : int
        Sizes of the axes of W that meet the input, and that make the output; of one group if there are several.
    features : int
        Size of all outputs, over all groups.
    gain : float
        RMS(mWx)/RMS(x) at initialization; of a lookup or vector, RMS(mW).
    frobenius_gain : float
        The same for inputs without correlation, ‖mW‖_F/√fan_out.
    contribution : float
        RMS(m ΔW x)/RMS(x) with the input at initialization; of a lookup or sum, RMS(m ΔW).
    spectral : float
        ‖m ΔW‖_2/√(fan_out/fan_in); NaN if it is no matrix.
    multiplier : float
        m, including scalars between the parameter and W; NaN if W is computed from several parameters.
    is_branch : bool
        Whether the output is added to other data, as at the end of a residual block.
    """

    parameters: tuple[str, ...]
    kind: Kind
    fan_in: int = 1
    fan_out: int = 1
    features: int = 1
    gain: Number = math.nan
    frobenius_gain: Number = math.nan
    contribution: Number = math.nan
    spectral: Number = math.nan
    multiplier: Number = 1.0
    is_branch: bool = False

    def scale(self, factor: Number) -> None:
        """Multiply the output by a scalar."""
        factor = abs(factor)
        self.gain *= factor
        self.frobenius_gain *= factor
        self.contribution *= factor
        self.spectral *= factor
        self.multiplier *= factor

    @property
    def name(self) -> str:
        """The parameter, or the module whose parameters are combined."""
        return common_name(self.parameters)


@dataclass
class AttentionUse:
    """Logits of one attention: `scale` is their factor before q·k times the dimension of q, 1 for q·k/d."""

    name: str
    scale: Number


@dataclass
class Trace:
    """All uses of a network, in order of evaluation."""

    uses: list[Use] = field(default_factory=list)
    attention: list[AttentionUse] = field(default_factory=list)


def mark_branch(pending: "Pending") -> None:
    """Say of uses that their output is added to other data."""
    for use, _ in pending:
        use.is_branch = True


def has_matrix(pending: "Pending") -> bool:
    """Whether a linear map is among the uses."""
    return any(use.kind == "matrix" for use, _ in pending)


def mark_reduced(pending: "Pending") -> None:
    """Say of entrywise products that they are summed over features: a linear map written in another way."""
    for use, _ in pending:
        if use.kind == "vector":
            use.kind = "other"


def common_name(names: tuple[str, ...]) -> str:
    """The longest dotted prefix of several names; a single name as it is."""
    if len(names) == 1:
        return names[0]
    parts = [name.split(".") for name in names]
    shared = [step[0] for step in zip(*parts) if len(set(step)) == 1]
    return ".".join(shared) or " and ".join(names)


Pending: TypeAlias = tuple[tuple[Use, Number], ...]
"""Uses that a value is the output of, and what the scalar since then has to be multiplied by for each."""


class PendingScales:
    """Scalars around a use, which belong to it unless the output enters a product of data with data.

    In ``(x / n) @ W`` and ``x @ W / n`` the scalar belongs to W; in ``q / sqrt(d) @ k`` to the attention. A linear map
    passes the scalar of its input on to its output. A bias that is added there does not share it.
    """

    def __init__(self) -> None:
        self._done: set[int] = set()

    def commit(self, pending: Pending, factor: Number) -> None:
        """Give a factor to the uses it belongs to, once."""
        for use, correction in pending:
            if id(use) not in self._done and not (isinstance(factor, float) and factor == 1.0):
                self._done.add(id(use))
                use.scale(factor * correction)


def merge(traces: Sequence[Trace]) -> list[Trace]:
    """Combine uses of the same parameters with the same axes in all traces, such as those of a recurrent layer."""
    groups: dict[tuple, list[int]] = {}
    for i, use in enumerate(traces[0].uses):
        if all(i < len(trace.uses) for trace in traces):
            axes = tuple((trace.uses[i].fan_in, trace.uses[i].fan_out) for trace in traces)
            groups.setdefault((use.parameters, use.kind, axes), []).append(i)
    return [Trace([_combined([trace.uses[i] for i in group]) for group in groups.values()], trace.attention)
            for trace in traces]  # fmt: skip


def _combined(uses: Sequence[Use]) -> Use:
    """Root mean squares over several uses."""
    found = replace(uses[0], is_branch=any(use.is_branch for use in uses))
    for name in ("gain", "frobenius_gain", "contribution", "spectral", "multiplier"):
        known = [getattr(use, name) ** 2 for use in uses if math.isfinite(getattr(use, name))]
        setattr(found, name, math.sqrt(math.fsum(known) / len(known)) if known else math.nan)
    return found
