"""`unlazy.check_scaling`: does this network learn features at every width, and which module prevents it?"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from unlazy.core.errors import check_positive_integer
from unlazy.diagnostics.measures.movement import estimate_gap, function_change
from unlazy.diagnostics.scaling.depth import find_in_depth
from unlazy.diagnostics.scaling.exponents import Coordinates
from unlazy.diagnostics.scaling.networks.construction import batch_of, build
from unlazy.diagnostics.scaling.networks.frameworks import make_runs
from unlazy.diagnostics.scaling.networks.runs import Run, Runs
from unlazy.diagnostics.scaling.networks.uses import merge
from unlazy.diagnostics.scaling.options import ScalingOptions
from unlazy.diagnostics.scaling.result import ScalingCheck
from unlazy.diagnostics.scaling.rules import Measured, find

WIDTHS = (64, 128, 256, 512)
LEAST_RATIO = 4
"""Least ratio of the largest size to the smallest. With a ratio of 2 half of the correct networks look wrong."""


def check_scaling(
    make: Callable[..., Any],
    data: tuple[Any, Any],
    *,
    optimizer: object,
    widths: Sequence[int] = WIDTHS,
    depths: Sequence[int] | None = None,
    options: ScalingOptions | None = None,
) -> ScalingCheck:
    """Check whether initialization and learning rates are right at every width.

    Networks of several widths are trained for a few steps. Of every operation in which a parameter meets data, the
    size of its output, and of the change of its output that its own update makes, must not depend on the width [T1].
    Each is measured relative to its own input, so that the parameter that is wrong is named, not those behind it.

    Parameters
    ----------
    make : callable
        ``make(width=64)``, or ``make(width=64, depth=4)`` with `depths`: returns a network as `unlazy.watch` takes it.
        In PyTorch it draws from the global generator, which is seeded; in JAX a keyword ``key`` or ``seed`` is passed
        if it has one.
    data : tuple (inputs, targets)
        One batch: inputs as the network takes them, targets as the loss takes them.
    optimizer : callable
        Returns an optimizer for a network: ``lambda network: torch.optim.Adam(network.parameters(), lr=1e-3)``, in JAX
        an optax transformation. Rates that depend on the width are set here.
    widths : sequence of int, default (64, 128, 256, 512)
        At least two, the largest at least four times the smallest.
    depths : sequence of int, optional
        Check depths too, at the smallest width; needs ``make(width=..., depth=...)`` and residual blocks.
    options : ScalingOptions, optional
        Steps, seeds, loss and what else is measured.

    Returns
    -------
    ScalingCheck
        The verdict in words, all exponents, and what to change.

    Raises
    ------
    ValueError
        If the networks say nothing about width: `make` ignores it, widths are too close, parameters have other names
        at other widths, or training diverges.

    See Also
    --------
    unlazy.watch : Is one training run lazy?

    Examples
    --------
    >>> import equinox as eqx, jax.numpy as jnp, numpy as np, optax
    >>> from unlazy import ScalingOptions, check_scaling
    >>> def make(width, key):
    ...     return eqx.nn.MLP(5, 1, width, 2, key=key)
    >>> X = np.random.default_rng(0).normal(size=(32, 5)).astype("float32")
    >>> found = check_scaling(make, (X, X[:, :1] * X[:, 1:2]), optimizer=optax.adam(0.01), widths=(32, 256),
    ...                       options=ScalingOptions(seeds=1, coordinates=False))
    >>> found.ok
    False
    >>> sorted({finding.name for finding in found.wrong})
    ['layers.1.weight', 'layers.2.weight']
    """
    options = ScalingOptions() if options is None else options
    widths = _sizes("widths", widths)
    inputs, targets = batch_of(data)
    fixed = {} if depths is None else {"depth": _sizes("depths", depths)[0]}
    runs = make_runs(make, optimizer, inputs, targets, options, build(make, {"width": widths[0], **fixed}))
    _compare_shapes(runs, widths, fixed)
    linear = runs.linear(0, width=widths[0], **fixed)
    found = [runs.run(seed, width=n, **fixed) for n in widths for seed in range(options.seeds)]
    _compare_runs(found)
    findings = find(_merged(found), linear)
    if not findings:
        raise ValueError("no parameter that takes part in the outputs grows with the width")
    if not any(finding.excess.known for finding in findings if finding.quantity == "rate"):
        raise ValueError(
            "no parameter with a growing axis moved at all widths: is it in the optimizer, with a rate above 0?"
        )
    if depths is not None:
        sizes = _sizes("depths", depths)
        deep = [runs.run(seed, width=widths[0], depth=n) for n in sizes for seed in range(options.seeds)]
        findings += find_in_depth([run.measured for run in deep])
    coordinates = [_coordinates(run) for run in found] if options.coordinates else []
    deep_sizes = () if depths is None else tuple(_sizes("depths", depths))
    return ScalingCheck(tuple(widths), tuple(findings), tuple(coordinates), all(linear.values()), deep_sizes)


def _sizes(name: str, given: Sequence[int]) -> list[int]:
    """Distinct sizes in order, far enough apart."""
    if isinstance(given, str) or not isinstance(given, Sequence | np.ndarray):
        raise ValueError(f"{name} must be a sequence of integers, got {given!r}")
    found = sorted({check_positive_integer(f"every entry of {name}", value) for value in given})
    if len(found) < 2 or found[-1] < LEAST_RATIO * found[0]:
        raise ValueError(
            f"{name} must contain two sizes of which one is at least {LEAST_RATIO} times the other, got "
            f"{tuple(found)}: slopes between close sizes are noise"
        )
    return found


def _compare_shapes(runs: Runs, widths: Sequence[int], fixed: Mapping[str, int]) -> None:
    """The same parameters at every width, of which some grow."""
    small, large = (runs.shapes(width=n, **fixed) for n in (widths[0], widths[-1]))
    missing = sorted(small.keys() ^ large.keys())
    if missing:
        raise ValueError(
            f"the parameter {missing[0]!r} exists at only one of the widths {widths[0]} and {widths[-1]}: make must "
            "return networks of one structure"
        )
    if small == large:
        raise ValueError(
            f"make ignores width: all parameters have the same shapes at widths {widths[0]} and {widths[-1]}"
        )


def _compare_runs(found: Sequence[Run]) -> None:
    """The same operations at every width."""
    first = found[0].measured
    for run in found[1:]:
        one, two = ([(use.parameters, use.kind) for use in m.trace.uses] for m in (first, run.measured))
        if one != two or len(first.trace.attention) != len(run.measured.trace.attention):
            raise ValueError(
                f"the network of width {run.measured.sizes['width']} computes something else than the first one of "
                f"width {first.sizes['width']}: its structure must not depend on width, data or random numbers"
            )


def _merged(found: Sequence[Run]) -> list[Measured]:
    """Runs whose repeated uses are combined."""
    traces = merge([run.measured.trace for run in found])
    return [run.measured._replace(trace=trace) for run, trace in zip(found, traces)]


def _coordinates(run: Run) -> Coordinates:
    """Sizes of outputs, before and after training."""
    model, inputs = run.model, run.inputs
    before, after = (model.layer_outputs(p, inputs) for p in (run.start, run.trained))
    sizes = {name: _rms(h) for name, h in before.items()}
    changes = {name: _rms(np.subtract(after[name], h)) for name, h in before.items() if name in after}
    start, change, linear = function_change(model, run.start, inputs, params=run.trained)
    gap = estimate_gap(start, change, linear, model.derivative_error).value
    return Coordinates(dict(run.measured.sizes), sizes, changes, _rms(start), _rms(change), gap, tuple(run.losses))


def _rms(x: Any) -> float:
    return float(np.sqrt(np.mean(np.square(np.asarray(x, np.float64)))))
