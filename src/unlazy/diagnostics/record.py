"""What a monitor found, as plain values: checks, their table, and JSON files that cannot run code."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from unlazy.core.errors import UnlazyError
from unlazy.core.files import atomic_write
from unlazy.diagnostics.advice import Advice, ScaledRun, advise, default_target
from unlazy.diagnostics.measures.kernel_result import KernelMachine
from unlazy.diagnostics.verdict import GapPoint, Verdict, decide

if TYPE_CHECKING:
    import pandas as pd

FORMAT, VERSION = "unlazy.monitor", 1


@dataclass(frozen=True)
class LayerCheck:
    """One layer at one check; NaN where it was not measured.

    Attributes
    ----------
    parameters : float
        ‖θ_l - θ_{0,l}‖/‖θ_{0,l}‖.
    movement : float
        ‖h_l(t) - h_l(0)‖/‖h_l(0)‖ of its outputs on the probe points [W4].
    similarity : float
        Centered kernel alignment of h_l(t) and h_l(0).
    effective_rank : float
        Of the centered outputs.
    initial_rank : float
        The same at initialization.
    """

    parameters: float = math.nan
    movement: float = math.nan
    similarity: float = math.nan
    effective_rank: float = math.nan
    initial_rank: float = math.nan


@dataclass(frozen=True)
class Check:
    """All measures at one step; NaN where one was not taken.

    Attributes
    ----------
    step : int
        Training step.
    seconds : float
        Time of training until then, without checks.
    cost : float
        Seconds that this check took.
    points : int
        Number of probe points of the gap.
    gap, gap_error : float
        Linearization gap [W1], and its standard error over points.
    change : float
        ‖f(θ_t) - f(θ_0)‖/‖f(θ_0)‖.
    loss, error : float
        On the probe points: mean cross-entropy or squared error; share of wrong labels or relative squared error.
    kernel_movement, kernel_movement_error, kernel_distance, kernel_distance_error : float
        Of the tangent kernel [W2], with standard errors.
    label_alignment, residual_alignment : float
        Of the centered tangent kernel with labels and residual [W3].
    alignment_error : float
        Relative standard error of both.
    richness : float
        1 - centered kernel alignment of the last features with the outputs [W4].
    sharpness, sharpness_error : float
        Largest eigenvalue of the Hessian of the loss on the probe points [W5], and its bound.
    stability : float
        Sharpness times the step size; descent is unstable above 2.
    layers : mapping from str to LayerCheck
        By name of the layer, in order of evaluation.
    """

    step: int
    seconds: float = math.nan
    cost: float = math.nan
    points: int = 0
    gap: float = math.nan
    gap_error: float = math.nan
    change: float = math.nan
    loss: float = math.nan
    error: float = math.nan
    kernel_movement: float = math.nan
    kernel_movement_error: float = math.nan
    kernel_distance: float = math.nan
    kernel_distance_error: float = math.nan
    label_alignment: float = math.nan
    residual_alignment: float = math.nan
    alignment_error: float = math.nan
    richness: float = math.nan
    sharpness: float = math.nan
    sharpness_error: float = math.nan
    stability: float = math.nan
    layers: Mapping[str, LayerCheck] = field(default_factory=dict)

    def numbers(self) -> dict[str, float]:
        """All measures that were taken, by name; those of layers as "layer/measure"."""
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "layers"}
        for name, layer in self.layers.items():
            own |= {f"{name}/{measure}": value for measure, value in asdict(layer).items()}
        return {name: value for name, value in own.items() if not math.isnan(value)}


@dataclass(frozen=True)
class Record:
    """The checks of one run.

    Attributes
    ----------
    checks : tuple of Check
        In order of steps.
    planned_steps : int or None
        Length of the run.
    step_size : float or None
        Learning rate.
    initial_loss : float
        Loss at initialization on the probe points of the last check.
    step : int
        The last step counted.
    overhead : float
        Time of the checks that the schedule chose over time of training.
    output_layers : tuple of str
        Layers whose outputs are those of the network, which no verdict on features concerns.
    scale : float
        Output scale α of the network [W6]; 1 unless it is one that `Monitor.rescale` returned.
    degree : float
        k with f(σθ_0) = σ^k f(θ_0); NaN if there is none, or it was not measured.
    kernel_machine : KernelMachine or None
        Kernel regression with the tangent kernel at initialization, if it was asked for.
    notes : tuple of str
        What went wrong or was chosen automatically.
    """

    checks: tuple[Check, ...] = ()
    planned_steps: int | None = None
    step_size: float | None = None
    initial_loss: float = math.nan
    step: int = 0
    overhead: float = math.nan
    output_layers: tuple[str, ...] = ()
    scale: float = 1.0
    degree: float = math.nan
    kernel_machine: KernelMachine | None = None
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The regime of the run from its checks so far."""
        gaps = [c for c in self.checks if c.points]
        points = [GapPoint(c.step, c.gap, c.gap_error) for c in gaps]
        last = gaps[-1] if gaps else None
        losses = (self.initial_loss, last.loss) if last and not math.isnan(self.initial_loss) else None
        finite = last is None or not math.isnan(last.change)
        return decide(points, self.planned_steps, losses=losses, layers=self.layer_movements, finite=finite)

    @property
    def layer_movements(self) -> dict[str, float]:
        """Relative movement of every hidden layer's outputs at the last check that measured them."""
        for check in reversed(self.checks):
            moved = {name: layer.movement for name, layer in check.layers.items() if not math.isnan(layer.movement)}
            if moved:
                return {name: value for name, value in moved.items() if name not in self.output_layers}
        return {}

    def advise(self, target_gap: float | None = None, earlier: Sequence["Record"] = ()) -> Advice:
        """Changes that would move the run to the target gap; by default to the nearest other regime."""
        verdict = self.verdict
        target = default_target(verdict) if target_gap is None else target_gap
        runs = [ScaledRun(other.scale, other.verdict.forecast.gap) for other in earlier if other.verdict.forecast]
        return advise(verdict, target, scale=self.scale, earlier=runs, degree=self.degree, machine=self.kernel_machine)

    def with_check(self, check: Check) -> "Record":
        """The same with one more check; a second check of a step replaces the first."""
        kept = tuple(c for c in self.checks if c.step != check.step)
        return replace(self, checks=(*kept, check))

    def frame(self) -> "pd.DataFrame":
        """One row per check and one column per measure; those of layers are named "layer/measure"."""
        import pandas as pd

        return pd.DataFrame([check.numbers() for check in self.checks])

    def save(self, path: str | Path) -> Path:
        """Write the record as JSON; not-a-number becomes null."""
        values = {"format": FORMAT, "version": VERSION, **asdict(self)}
        with atomic_write(path) as aside:
            aside.write_text(json.dumps(without_nan(values), indent=1, allow_nan=False), "utf-8")
        return Path(path)

    @classmethod
    def load(cls, path: str | Path) -> "Record":
        """Read what `save` wrote.

        Raises
        ------
        UnlazyError
            If the file is of another kind or version.
        """
        try:
            values = json.loads(Path(path).read_text("utf-8"))
        except OSError as error:
            raise UnlazyError(f"{path} cannot be read: {error.strerror or error}") from error
        except ValueError as error:
            raise UnlazyError(f"{path} cannot be read as the record of a monitor: {error}") from error
        if not isinstance(values, dict) or values.get("format") != FORMAT:
            raise UnlazyError(f"{path} is not the record of a monitor: pass a file that Monitor.save wrote")
        if values.get("version") != VERSION:
            raise UnlazyError(f"{path} has version {values.get('version')}, this unlazy reads {VERSION}")
        try:
            return _record(values)
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise UnlazyError(f"{path} is damaged: {error}") from error


_INFINITE = {"Infinity": math.inf, "-Infinity": -math.inf}


def without_nan(value: object) -> object:
    """Values that JSON knows: NaN is null, infinities are words."""
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, Mapping):
        return {str(k): without_nan(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(v) for v in value]
    return value


def _number(value: object) -> float:
    if value is None:
        return math.nan
    if isinstance(value, str):
        return _INFINITE[value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value!r} is not a number")
    return value


def _record(values: dict) -> Record:
    """A record from the values in a file, every one of which is checked."""
    checks = []
    for entry in values["checks"]:
        layers = {
            str(name): LayerCheck(**{measure: _number(v) for measure, v in layer.items()})
            for name, layer in entry.pop("layers").items()
        }
        step, points = (int(entry.pop(name)) for name in ("step", "points"))
        numbers: dict[str, float] = {name: _number(v) for name, v in entry.items()}
        checks.append(replace(Check(step, points=points, layers=layers), **numbers))  # type: ignore[arg-type]
    planned, rate = values["planned_steps"], values["step_size"]
    machine = values["kernel_machine"]
    if machine is not None:
        points, training = int(machine.pop("points")), machine.pop("training_points")
        numbers = {name: _number(v) for name, v in machine.items()}
        machine = KernelMachine(points, training_points=None if training is None else int(training), **numbers)
    return Record(
        tuple(checks), None if planned is None else int(planned), None if rate is None else float(rate),
        _number(values["initial_loss"]), int(values["step"]), _number(values["overhead"]),
        tuple(map(str, values["output_layers"])), _number(values["scale"]), _number(values["degree"]), machine,
        tuple(map(str, values["notes"])),
    )  # fmt: skip
