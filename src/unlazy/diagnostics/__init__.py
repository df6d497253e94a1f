"""Diagnostics of your own networks: lazy or rich, whether rates hold at every width, error bars and attribution."""

from unlazy._lazy_exports import lazy_exports

_WHERE = {
    "Attribution": "unlazy.diagnostics.attribution",
    "Advice": "unlazy.diagnostics.advice",
    "Check": "unlazy.diagnostics.record",
    "KernelMachine": "unlazy.diagnostics.measures.kernel_result",
    "LayerCheck": "unlazy.diagnostics.record",
    "Monitor": "unlazy.diagnostics.monitor",
    "NetworkPosterior": "unlazy.solvers.tangent.posterior",
    "NetworkPrediction": "unlazy.solvers.tangent.posterior",
    "Record": "unlazy.diagnostics.record",
    "RateSweep": "unlazy.diagnostics.scaling.sweep",
    "Rescaled": "unlazy.diagnostics.rescaling.network",
    "ScaledFactory": "unlazy.diagnostics.scaling.scaled",
    "ScalingCheck": "unlazy.diagnostics.scaling.result",
    "ScalingOptions": "unlazy.diagnostics.scaling.options",
    "Verdict": "unlazy.diagnostics.verdict",
    "WatchOptions": "unlazy.diagnostics.options",
    "TangentOptions": "unlazy.solvers.tangent.options",
    "attribution": "unlazy.diagnostics.attribution",
    "check_scaling": "unlazy.diagnostics.scaling.check",
    "scaled": "unlazy.diagnostics.scaling.scaled",
    "sweep_rates": "unlazy.diagnostics.scaling.sweep",
    "uncertainty": "unlazy.diagnostics.uncertainty",
    "watch": "unlazy.diagnostics.monitor",
    "write_page": "unlazy.diagnostics.report.page",
}
__all__ = [*_WHERE]
__getattr__, __dir__ = lazy_exports(__name__, _WHERE)
