"""Measures of a fitted model: risk, subspaces, alignment, kernel drift, scaling exponents."""

from unlazy._lazy_exports import lazy_exports

_MODULES = {
    "alignment": (
        "centered_alignment",
        "entry_correlation",
        "kernel_alignment",
        "target_alignment",
    ),
    "laziness": (
        "Laziness",
        "explained_share",
    ),
    "learning_curve": ("RiskCurve",),
    "neurons": (
        "clustering",
        "clustering_test",
        "feature_cosines",
        "pairwise_cosines",
        "plane_embedding",
    ),
    "risk": (
        "accuracy",
        "normalized_risk",
    ),
    "scaling_fit": (
        "Interval",
        "PowerLaw",
        "crossing",
        "power_law",
        "scaling_exponent",
        "slope",
    ),
    "spectra": (
        "effective_dimension",
        "gram_spectrum",
        "participation_ratio",
    ),
    "subspace": (
        "energy",
        "overlap",
        "principal_angles",
        "row_alignment",
        "top_directions",
        "top_overlap",
    ),
    "tangent_drift": (
        "distance",
        "parameter_movement",
        "relative_change",
    ),
}
_WHERE = {name: f"unlazy.measures.{module}" for module, names in _MODULES.items() for name in names}
__all__ = [*_WHERE]
__getattr__, __dir__ = lazy_exports(__name__, _WHERE)
