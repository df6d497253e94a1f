"""`unlazy.scaled`: the initialization and the rates of a network at every width, from those at one width."""

import inspect
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from unlazy.core.errors import UnlazyWarning, check_positive, check_positive_integer
from unlazy.diagnostics.scaling.axes import Axes, axes_of
from unlazy.diagnostics.scaling.networks.construction import build
from unlazy.diagnostics.scaling.networks.frameworks import multiply, probe
from unlazy.diagnostics.scaling.networks.uses import merge
from unlazy.diagnostics.scaling.rules import LIMITS, READOUT
from unlazy.diagnostics.scaling.slopes import fit_slope

if TYPE_CHECKING:
    import optax
    import pandas as pd
    import torch

Optimizer: TypeAlias = str
OPTIMIZERS = ("adam", "sgd", "muon")
RULES = ("mup", "completep")
FAR, SEEDS = 8, 3
"""Factor between the widths at which initial values are compared, and networks of each."""


def scaled(
    make: Callable[..., Any],
    inputs: Any,
    *,
    base: int = 64,
    base_depth: int | None = None,
    rule: str = "mup",
    roles: Mapping[str, str] | None = None,
) -> "ScaledFactory":
    """Scale a network so that rates tuned at one width hold at every width.

    The network keeps its initialization at the base width. At other widths every parameter is multiplied by the power
    of the width that [T1] asks for, and has a learning rate of its own. Which axes grow is found by evaluating networks
    of two widths.

    Parameters
    ----------
    make : callable
        ``make(width=64)``, or with a depth ``make(width=64, depth=4)``, see `check_scaling`.
    inputs : array
        One small batch, as the network takes it.
    base : int, default 64
        Width at which nothing changes.
    base_depth : int, optional
        Depth at which nothing changes; needed for the rule "completep".
    rule : {"mup", "completep"}
        Maximal update in the width, or also in the depth: blocks of residual networks are divided by the depth [T4].
    roles : mapping of str to str, optional
        For parameters that are refused: "hidden", "input", "readout", "lookup", "vector" or "fixed" by name.

    Returns
    -------
    ScaledFactory
        Makes networks and the rates that belong to them.

    Raises
    ------
    ValueError
        If the role of a parameter is not clear.

    See Also
    --------
    unlazy.check_scaling : Does it work?

    Examples
    --------
    >>> import equinox as eqx, jax, numpy as np, optax
    >>> from unlazy import scaled
    >>> def make(width, key):
    ...     return eqx.nn.MLP(5, 1, width, 1, use_bias=False, key=key)
    >>> factory = scaled(make, np.ones((4, 5), "float32"))
    >>> factory.frame()[["role", "initialization", "adam", "sgd"]].to_dict("index")["layers.1.weight"]
    {'role': 'readout', 'initialization': -0.5, 'adam': -1.0, 'sgd': -1.0}
    >>> network = factory(width=256, key=jax.random.key(0))
    >>> optimizer = optax.chain(optax.adam(1e-3), factory.scale_updates(network, width=256))
    """
    if rule not in RULES:
        raise ValueError(f"unknown rule {rule!r}: choose from {', '.join(RULES)}")
    base = check_positive_integer("base", base)
    if (rule == "completep") != (base_depth is not None):
        raise ValueError("the rule 'completep' needs base_depth, and 'mup' has none")
    fixed = {} if base_depth is None else {"depth": check_positive_integer("base_depth", base_depth)}
    widths = [base] * SEEDS + [FAR * base] * SEEDS
    seen = probe([build(make, {"width": n, **fixed}, i % SEEDS) for i, n in enumerate(widths)], inputs)
    traces = merge([trace for trace, _ in seen])
    axes = axes_of(widths, traces, [shapes for _, shapes in seen], roles)
    for i, attention in enumerate(traces[0].attention):
        slope = fit_slope(widths, [trace.attention[i].scale for trace in traces])
        if slope.value > LIMITS["attention"]:
            warnings.warn(
                f"the logits of the attention in {attention.name or 'the network'} grow with the width: divide q·k by "
                "the dimension of a head, not by its root",
                UnlazyWarning,
                stacklevel=2,
            )
    blocks = None
    if base_depth is not None:
        ((_, deep),) = probe([build(make, {"width": base, "depth": 2 * base_depth})], inputs)
        blocks = _block_prefixes(seen[0][1], deep)
    return ScaledFactory(make, axes, base, base_depth, blocks)


class ScaledFactory:
    """Networks of every width, and their rates; made by `unlazy.scaled`."""

    def __init__(
        self, make: Callable[..., Any], axes: Mapping[str, Axes], base: int, base_depth: int | None,
        blocks: Sequence[str] | None,
    ) -> None:  # fmt: skip
        self._make, self._base, self._base_depth, self._blocks = make, base, base_depth, blocks
        self.axes = dict(axes)
        self.__signature__ = inspect.signature(make)  # `check_scaling` passes a key if make takes one

    def __call__(self, *, width: int, depth: int | None = None, **random: Any) -> Any:
        """Make a network with scaled initial values.

        Parameters
        ----------
        width : int
            Width.
        depth : int, optional
            Depth, if there is a base depth.
        **random
            A ``key`` or ``seed`` for `make`, in JAX.

        Returns
        -------
        network
            What `make` returns, with other initial values.
        """
        sizes = {"width": width} | ({} if depth is None else {"depth": depth})
        network = build(self._make, sizes, random)
        return multiply(network, lambda name: self._factor(name, "initialization", width, depth))

    def multiplier(self, name: str, optimizer: Optimizer, *, width: int, depth: int | None = None) -> float:
        """Factor of the learning rate of one parameter.

        Parameters
        ----------
        name : str
            Parameter.
        optimizer : {"adam", "sgd", "muon"}
            Adam and its relatives; SGD with or without momentum; Muon for matrices, with Adam for all others.
        width, depth : int
            Size of the network.

        Returns
        -------
        float
            1 at the base sizes.
        """
        return self._factor(name, _known_optimizer(optimizer), width, depth)

    def groups(
        self, network: "torch.nn.Module", lr: float, *, optimizer: Optimizer = "adam", width: int,
        depth: int | None = None, weight_decay: float | None = None,
    ) -> "list[dict[str, Any]]":  # fmt: skip
        """Parameter groups for an optimizer of PyTorch.

        Parameters
        ----------
        network : torch.nn.Module
            A network of this factory.
        lr : float
            Learning rate at the base sizes.
        optimizer : {"adam", "sgd", "muon"}
            See `multiplier`.
        width, depth : int
            Size of the network.
        weight_decay : float, optional
            At the base sizes. Decay per step stays the same: it is divided by the factor of the rate.

        Returns
        -------
        list of dict
            One group for each learning rate.
        """
        check_positive("lr")(lr)
        found: dict[float, dict[str, Any]] = {}
        for name, p in network.named_parameters():
            if p.requires_grad:
                factor = self.multiplier(_plain(name), optimizer, width=width, depth=depth)
                group = found.setdefault(factor, {"params": [], "lr": lr * factor})
                group["params"].append(p)
                if weight_decay is not None:
                    group["weight_decay"] = weight_decay / factor
        return list(found.values())

    def scale_updates(
        self, network: Any, *, optimizer: Optimizer = "adam", width: int, depth: int | None = None
    ) -> "optax.GradientTransformation":
        """Transformation that multiplies updates, for ``optax.chain(optax.adam(lr), factory.scale_updates(...))``.

        Parameters
        ----------
        network : Equinox module, nnx module or pair (apply, params)
            A network of this factory.
        optimizer : {"adam", "sgd", "muon"}
            See `multiplier`.
        width, depth : int
            Size of the network.

        Returns
        -------
        optax.GradientTransformation
        """
        import jax
        import optax

        from unlazy.diagnostics.scaling.networks.jax_trace import parameter_names

        def factor(name: str) -> float:
            return self.multiplier(name, optimizer, width=width, depth=depth)

        def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
            names = parameter_names(updates)
            return jax.tree.map(lambda name, u: factor(name) * u, names, updates), state

        return optax.GradientTransformation(lambda params: optax.EmptyState(), update)

    def frame(self) -> "pd.DataFrame":
        """Exponents of the width of initial values and rates.

        Returns
        -------
        pandas.DataFrame
            One row per parameter, with columns role, initialization, adam, sgd, muon.
        """
        import pandas as pd

        rows = {name: {"role": axes.role, **_exponents(axes)} for name, axes in self.axes.items()}
        return pd.DataFrame.from_dict(rows, orient="index")

    def _factor(self, name: str, what: str, width: int, depth: int | None) -> float:
        block = self._block_of(name)
        axes = self.axes.get(name if block is None else self._at_base(name, block))
        if axes is None:
            remedy = "" if self._base_depth else "; for other depths pass base_depth and the rule 'completep'"
            raise ValueError(f"{name!r} is no parameter of the network of width {self._base}{remedy}")
        factor = (width / self._base) ** _exponents(axes)[what]
        if block is not None and depth is not None and self._base_depth is not None:
            factor *= (depth / self._base_depth) ** _depth_exponents(axes)[what]
        return factor

    def _block_of(self, name: str) -> str | None:
        """The list of blocks that a parameter belongs to."""
        for prefix in self._blocks or ():
            start = f"{prefix}." if prefix else ""
            if name.startswith(start) and name[len(start) :].partition(".")[0].isdigit():
                return prefix
        return None

    def _at_base(self, name: str, block: str) -> str:
        """The parameter at the base depth that corresponds to one in a deeper network."""
        if name in self.axes:
            return name
        start = f"{block}." if block else ""
        rest = name[len(start) :].partition(".")[2]
        pattern = re.compile(rf"{re.escape(start)}\d+\.{re.escape(rest)}")
        return next((known for known in self.axes if pattern.fullmatch(known)), name)


def _exponents(axes: Axes) -> dict[str, float]:
    """Exponents of the width of the initial value and of the rates of each kind of optimizer.

    With mW the effective weight, m ∝ n^multiplier: ‖mW‖ and ‖mΔW‖ of order √(n_out/n_in). Adam's update has entries of
    order 1 and so a norm of √(n_in n_out); that of SGD is ηm²δxᵀ with δ ∝ 1/n_out; Muon's has the norm 1.
    """
    m, matrix = axes.multiplier, axes.role in ("hidden", "input", "readout")
    target = READOUT if axes.role == "readout" else 0.0
    # biases and gains keep the initial values that users gave them
    start = target - _quarters(axes.gain) if axes.role not in ("vector", "fixed") else 0.0
    adam = -(axes.fan_in if matrix else 0.0) - m
    sgd = axes.features - (axes.fan_in if matrix else 0.0) - 2 * m
    muon = (axes.fan_out - axes.fan_in) / 2 - m if matrix else adam
    found = {"initialization": start, "adam": adam, "sgd": sgd, "muon": muon}
    return {what: 0.0 if axes.role == "fixed" else _quarters(value) + 0.0 for what, value in found.items()}


def _depth_exponents(axes: Axes) -> dict[str, float]:
    """The same of the depth, in residual blocks: 1/L is part of the map that ends a block [T4].

    SGD's gradients within a block carry this factor and have to lose it; Adam and Muon do not see it.
    """
    if axes.is_branch:
        return {"initialization": -1.0, "adam": -1.0, "sgd": -1.0, "muon": -1.0}
    return {"initialization": 0.0, "adam": 0.0, "sgd": 1.0, "muon": 0.0}


def _quarters(value: float) -> float:
    return round(4 * value) / 4 if math.isfinite(value) else 0.0


def _known_optimizer(optimizer: str) -> str:
    if optimizer not in OPTIMIZERS:
        raise ValueError(f"unknown optimizer {optimizer!r}: choose from {', '.join(OPTIMIZERS)}")
    return optimizer


def _block_prefixes(base: Mapping[str, object], deep: Mapping[str, object]) -> list[str]:
    """Lists of blocks: prefixes with more numbered entries in a deeper network."""
    from unlazy.diagnostics.scaling.depth import numbered_entries

    few, more = numbered_entries(base), numbered_entries(deep)
    return [prefix for prefix in more if len(more[prefix]) > len(few.get(prefix, ()))]


def _plain(name: str) -> str:
    """The name of a parameter of a compiled or wrapped network."""
    return name.replace("_orig_mod.", "").removeprefix("module.")
