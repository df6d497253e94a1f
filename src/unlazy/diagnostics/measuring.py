"""The measures of one run: the initial network, the probe points, and what is kept between checks."""

import math
import time
from typing import Any, TypeAlias

import numpy as np

from unlazy.diagnostics.measures.kernel_result import KernelMachine
from unlazy.diagnostics.measures.kernel_sketch import KernelSketch, kernel_alignment
from unlazy.diagnostics.measures.losses import label_matrix, probe_error, probe_loss, residual_matrix
from unlazy.diagnostics.measures.movement import (
    estimate_gap,
    feature_changes,
    function_change,
    homogeneous_degree,
    parameter_movement,
    richness,
)
from unlazy.diagnostics.measures.sharpness import sharpness
from unlazy.diagnostics.options import WatchOptions
from unlazy.diagnostics.probes import POINTS, Probes
from unlazy.diagnostics.record import LayerCheck
from unlazy.models.protocol import Inputs, Model, Outputs, Params

Fields: TypeAlias = dict[str, Any]
"""Some fields of a `Check`."""
FEW = 32
"""Largest number of probe points for features, kernel and sharpness."""
SEPARATE = 1e-3
"""Points are evaluated separately if outputs on a subset differ by at most this share from those among more points."""


class Measuring:
    """Measures of a network against its initialization, each as the fields of a `Check`.

    Parameters
    ----------
    model : Model
        The network at initialization.
    probes : Probes
        Probe points.
    options : WatchOptions
        Measures, accuracy and precision.
    reference : pytree, optional
        Parameters that changes are counted from; those of the model by default.
    step_size : float, optional
        Learning rate.
    """

    def __init__(
        self,
        model: Model,
        probes: Probes,
        options: WatchOptions,
        reference: Params | None = None,
        step_size: float | None = None,
    ) -> None:
        self.model, self.options, self._probes, self._step_size = model, options, probes, step_size
        self.points = self._first_points()
        self.reference = self._stored(reference)
        model.check_inputs(probes.inputs(self.points))
        #: Whether the initial network was evaluated, see `prepare`.
        self.ready = False
        #: Number of points that the stated error needs.
        self.wanted_points = self.points
        self._initial: tuple[int, Outputs] | None = None
        self._end: Outputs | None = None
        self._kernel: tuple[KernelSketch, KernelSketch | None] | None = None
        self.output_layers: tuple[str, ...] = ()
        self.initial_loss = math.nan
        #: Of one evaluation at initialization, see `prepare`.
        self.evaluation_seconds = math.nan

    @property
    def startup(self) -> float:
        """Rough seconds that the next gap takes beyond those after it."""
        return self.model.startup

    def prepare(self) -> Fields:
        """Evaluate the initial network, which also compiles what the gap needs; it may be done at any later step."""
        self.model.fix_statistics(self._probes.inputs(self.points), self.reference)
        self._evaluate_start()
        self.ready = True
        return {}

    def add_points(self) -> None:
        """Use as many points as the stated error needs."""
        self.points = self.wanted_points

    def available(self) -> tuple[str, ...]:
        """The requested measures that can be taken."""
        sharp = self.options.loss is not None and self._probes.targets(1) is not None
        return tuple(name for name in self.options.measures if name != "sharpness" or sharp)

    def measure(self, name: str) -> Fields:
        """Take one measure, by its name in the options."""
        return {"start": self.prepare, "gap": self._gap, "features": self._features, "kernel": self._kernel_measures,
                "sharpness": self._sharpness}[name]()  # fmt: skip

    def degree(self) -> float:
        """Degree of homogeneity of the network at initialization; NaN if it has none."""
        return homogeneous_degree(self.model, self.reference, self._probes.inputs(self._few()))

    def kernel_machine(self, training_points: int | None) -> KernelMachine:
        """The tangent-kernel machine at initialization beside the network, on the probe points."""
        from unlazy.diagnostics.measures.kernel_machine import MAX_POINTS, fit_kernel_machine  # imports JAX

        rows = self._probes.rows
        count = self.points if rows is None else min(rows, MAX_POINTS)
        outputs = np.asarray(self.model.apply(self.model.params, self._probes.inputs(count)), np.float64)
        return fit_kernel_machine(
            self.model, self.reference, self._probes, outputs, count=count, training_points=training_points,
            seed=self.options.seed,
        )  # fmt: skip

    def _stored(self, reference: Params | None) -> Params:
        """θ_0 as the model stores it: the given one, or a copy of what is there."""
        on_host = self.options.reference_on_host
        return self.model.snapshot(on_host) if reference is None else self.model.stored(reference, on_host)

    def _outputs_at_start(self, inputs: Inputs) -> Outputs:
        return np.asarray(self.model.change(self.reference, self.reference, inputs)[0], np.float64)

    def _outputs(self, inputs: Inputs) -> Outputs:
        """Outputs on the few points, among those of the gap at this step where they are."""
        few, rows = self._few(), self._probes.rows
        if self._end is not None and (rows is None or few <= len(self._end)):
            return self._end if rows is None else self._end[self._probes.positions(few, len(self._end))]
        return np.asarray(self.model.apply(self.model.params, inputs), np.float64)

    def _first_points(self) -> int:
        rows = self._probes.rows
        wanted = self.options.points or POINTS
        return wanted if rows is None else min(wanted, rows)

    def _few(self) -> int:
        return self.points if self._probes.rows is None else min(FEW, self._probes.rows)

    def _evaluate_start(self) -> None:
        """f(θ_0) on the first points; use all points together where their outputs depend on each other."""
        probes, m = self._probes, self.points
        began = time.perf_counter()
        start = self._outputs_at_start(probes.inputs(m))
        self.evaluation_seconds = time.perf_counter() - began
        if probes.rows is not None:
            if len(start) != m:
                probes.keep_whole()
            elif m > 1:
                half, began = m // 2, time.perf_counter()
                among = self._outputs_at_start(probes.half_repeated(m))
                self.evaluation_seconds = time.perf_counter() - began  # the first one may compile
                if np.linalg.norm(among[:half] - start[:half]) > SEPARATE * np.linalg.norm(start[:half]):
                    probes.keep_whole()
        self.points = self.wanted_points = m if probes.rows is not None else len(start)
        self._initial = (m, start) if probes.rows is not None else None

    def _gap(self) -> Fields:
        """Gap, change, loss, and the number of points that the stated error needs."""
        m, inputs = self.points, self._probes.inputs(self.points)
        known = self._initial[1] if self._initial is not None and self._initial[0] == m else None
        start, change, linear = function_change(self.model, self.reference, inputs, initial=known)
        self._initial, self._end = (m, start), start + change
        found = estimate_gap(start, change, linear, self.model.derivative_error)
        targets = self._probes.target_array(m)
        rows = self._probes.rows
        inaccurate = found.standard_error > self.options.error * max(found.value, 1.0)
        if inaccurate and self.options.points is None and rows is not None:
            self.wanted_points = min(2 * m, rows)
        values = {"points": len(start), "gap": found.value, "gap_error": found.standard_error, "change": found.change}
        if targets is not None:
            self.initial_loss = probe_loss(start, targets)
            values |= {"loss": probe_loss(self._end, targets), "error": probe_error(self._end, targets)}
        return values

    def _features(self) -> Fields:
        """Movement of parameters and features of every layer, and richness."""
        model, inputs = self.model, self._probes.inputs(self._few())
        before, after = (dict(model.layer_outputs(p, inputs)) for p in (self.reference, model.params))
        outputs = self._outputs(inputs)
        moved = parameter_movement(model, self.reference)
        changed = feature_changes(before, after)
        layers = {name: LayerCheck(parameters=value) for name, value in moved.items()}
        # in the order of evaluation
        layers = {name: layers.get(name, LayerCheck(parameters=0.0)) for name in (*changed, *layers)}
        for name, change in changed.items():
            layers[name] = LayerCheck(layers[name].parameters, *change)
        # the readout: its outputs are those of the network, perhaps scaled or shifted
        ends = tuple(name for name, h in list(after.items())[-1:] if h.shape == outputs.shape)
        hidden = [name for name in after if name not in ends]
        last = richness(after[hidden[-1]], outputs) if hidden else math.nan
        self.output_layers = ends
        return {"layers": layers, "richness": last}

    def _kernel_measures(self) -> Fields:
        """Movement and distance of the tangent kernel, alignment with labels and residual."""
        model, few = self.model, self._few()
        inputs, targets = self._probes.inputs(few), self._probes.target_array(few)
        outputs = np.asarray(model.apply(model.params, inputs), np.float64)
        labels = None if targets is None else label_matrix(outputs, targets)
        if self._kernel is None:
            sketches = [
                KernelSketch(model, self.reference, inputs, outputs.shape, centered=centered,
                             error=self.options.error, seed=self.options.seed)
                for centered in ((False,) if labels is None else (False, True))
            ]  # fmt: skip
            self._kernel = sketches[0], sketches[1] if labels is not None else None
        plain, centered = self._kernel
        found = plain.compare(model.params)
        values = {
            "kernel_movement": found.movement.value, "kernel_movement_error": found.movement.standard_error,
            "kernel_distance": found.distance.value, "kernel_distance_error": found.distance.standard_error,
        }  # fmt: skip
        if centered is not None and labels is not None and targets is not None:
            norm = centered.norm(model.params)
            residual = residual_matrix(outputs, targets)
            assert residual is not None
            values |= {
                "label_alignment": kernel_alignment(model, model.params, inputs, labels, norm.value),
                "residual_alignment": kernel_alignment(model, model.params, inputs, residual, norm.value),
                "alignment_error": norm.standard_error / norm.value if norm.value > 0 else math.nan,
            }
        return values

    def _sharpness(self) -> Fields:
        few = self._few()
        assert self.options.loss is not None
        found = sharpness(self.model, self._probes.inputs(few), self._probes.targets(few), self.options.loss)
        times = math.nan if self._step_size is None else self._step_size * found.value
        return {"sharpness": found.value, "sharpness_error": found.error, "stability": times}
